"""The contract every tier keeps, as an inheritable suite; tiers that fail on purpose are in `wrapped_tiers`.

A plug-in's tests subclass `TierContract` and say how to make the tier and how to look behind its back. The suite is for
tiers of the host, whose replicas are files.
"""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import blake3
import pytest

from trims.core.errors import CapacityError, DrainingError, ImageError
from trims.core.place import CPU, DISK
from trims.image.plan import SourceTensor, plan_image
from trims.testing.descriptors import few_descriptors
from trims.testing.wrapped_tiers import FaultyTier, SlowTier, WrappedTier
from trims.tiers import checking
from trims.tiers.base import DeviceTier, InPlaceTier, Tier, identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trims.tiers.base import Extent

__all__ = ["KEY", "FaultyTier", "SlowTier", "TierContract", "WrappedTier", "an_image", "put"]

KEY = "a" * 64


def an_image(nbytes: int = 4096) -> bytes:
    """Return the bytes of a small image."""
    plan = plan_image(
        [SourceTensor("w", "U8", (nbytes,), lambda place: place.__setitem__(slice(None), b"\7" * nbytes))]
    )
    target = bytearray(plan.nbytes)
    plan.write_into(memoryview(target))
    return bytes(target)


def put(tier: Tier, data: bytes, key: str = KEY, generation: int = 1) -> Extent:
    """Create, fill and seal."""
    draft = tier.create(key, generation, len(data), allocate=True)
    os.pwrite(draft.fd, data, 0)
    return tier.seal(draft, key, blake3.blake3(data).hexdigest())


class TierContract:
    """Subclass it as `TestMyTier`, provide `make` and `traces`, and declare what the tier promises.

    Attributes:
        spaces: Folders, or the like, that a scan lists; one that cannot be listed counts as one thing skipped.
        survives_restart: The next daemon finds what was sealed. Where not, it must find nothing.
        tamper_proof: No process can change a sealed replica, root's included. Where not, `verify` must notice.
    """

    spaces = 1
    survives_restart = True
    tamper_proof = False

    def make(self, folder: Path, capacity_bytes: int = 1 << 20) -> Tier:
        """Return a tier; the same folder again finds the same replicas."""
        raise NotImplementedError

    def traces(self, folder: Path) -> set[str]:
        """Return names of everything the tier keeps, found without its help."""
        raise NotImplementedError

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Return a folder of the test's own."""
        return tmp_path

    @pytest.fixture
    def tier(self, folder: Path) -> Iterator[Tier]:
        """Yield a tier that is emptied after the test."""
        made = self.make(folder)
        yield made
        made.close()
        last = self.make(folder)
        for extent in list(last.scan()):
            last.free(extent)
        last.close()
        assert not self.traces(folder)

    def test_it_is_a_tier_of_the_host_that_says_what_it_holds(self, tier: Tier) -> None:
        assert isinstance(tier, Tier)
        assert not isinstance(tier, (DeviceTier, InPlaceTier))
        assert tier.place in (CPU, DISK)
        assert type(tier.capacity_bytes) is int
        assert 0 < tier.capacity_bytes <= 1 << 20
        assert type(tier.hash_on_adoption) is bool
        assert list(tier.scan()) == []
        assert tier.skipped == 0

    def test_a_sealed_replica_reads_as_it_was_written(self, tier: Tier) -> None:
        data = an_image()
        extent = put(tier, data)
        assert os.pread(extent.fd, len(data) + 1, 0) == data
        assert (extent.nbytes, extent.key, extent.place) == (len(data), KEY, tier.place)

    def test_a_draft_is_zeroed_and_of_exactly_the_size(self, tier: Tier) -> None:
        draft = tier.create(KEY, 1, 10_000, allocate=True)
        assert os.pread(draft.fd, 20_000, 0) == bytes(10_000)
        tier.abort(draft)

    def test_a_sealed_replica_cannot_be_written_through_its_descriptor(self, tier: Tier) -> None:
        extent = put(tier, an_image())
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(extent.fd, b"x", 0)
        assert os.fstat(extent.fd).st_mode & 0o777 == 0o400

    def test_a_draft_is_filled_by_another_process_through_a_mapping(self, tier: Tier) -> None:
        data = an_image()
        draft = tier.create(KEY, 1, len(data), allocate=True)
        command = [sys.executable, "-c", _FILL, str(draft.fd)]
        subprocess.run(command, input=data, pass_fds=[draft.fd], check=True, timeout=100)
        extent = tier.seal(draft, KEY, blake3.blake3(data).hexdigest())
        with mmap.mmap(extent.fd, extent.nbytes, prot=mmap.PROT_READ) as mapping:
            assert mapping[:] == data
        tier.verify(extent)

    def test_two_replicas_have_two_labels_and_keep_them_over_a_restart(self, tier: Tier, folder: Path) -> None:
        extents = [put(tier, an_image(), key=f"{number}" * 64, generation=number) for number in range(1, 4)]
        labels = {extent.key: extent.label for extent in extents}
        assert len(set(labels.values())) == 3
        for second in self.next_daemon(tier, folder):
            assert {each.key: each.label for each in second.scan()} == (labels if self.survives_restart else {})

    def test_closing_twice_is_fine_and_keeps_no_descriptor(self, folder: Path) -> None:
        before = len(os.listdir("/proc/self/fd"))
        tier = self.make(folder)
        put(tier, an_image())
        tier.free(put(tier, an_image(), key="b" * 64))
        tier.close()
        tier.close()
        assert len(os.listdir("/proc/self/fd")) == before
        for second in self.next_daemon(tier, folder):
            for extent in list(second.scan()):
                second.free(extent)
        assert not self.traces(folder)

    def test_an_aborted_draft_leaves_nothing(self, tier: Tier, folder: Path) -> None:
        tier.abort(tier.create(KEY, 1, 10_000, allocate=True))
        assert not self.traces(folder)

    def test_a_freed_replica_leaves_nothing_but_open_readers(self, tier: Tier, folder: Path) -> None:
        data = an_image()
        extent = put(tier, data)
        reader = os.dup(extent.fd)
        tier.free(extent)
        assert os.pread(reader, len(data), 0) == data
        os.close(reader)
        assert not self.traces(folder)

    def test_the_next_daemon_finds_what_was_sealed_if_the_tier_promises_it(self, tier: Tier, folder: Path) -> None:
        data = an_image()
        digest = put(tier, data).digest
        tier.close()
        assert bool(self.traces(folder)) is self.survives_restart
        second = self.make(folder)
        found = [(each.key, each.digest, each.nbytes, os.pread(each.fd, len(data), 0)) for each in second.scan()]
        assert found == ([(KEY, digest, len(data), data)] if self.survives_restart else [])
        second.close()

    def test_what_is_left_alone_is_there_for_the_daemon_after(self, tier: Tier, folder: Path) -> None:
        digest = put(tier, an_image()).digest
        tier.close()
        for _ in range(2):
            each = self.make(folder)
            found = list(each.scan())
            assert [extent.digest for extent in found] == ([digest] if self.survives_restart else [])
            for extent in found:
                each.leave(extent)
                with pytest.raises(OSError, match="Bad file"):
                    os.fstat(extent.fd)
            each.close()

    def test_a_reader_keeps_reading_when_the_daemon_is_gone(self, tier: Tier) -> None:
        data = an_image()
        reader = os.dup(put(tier, data).fd)
        tier.close()
        assert os.pread(reader, len(data), 0) == data
        os.close(reader)

    def test_the_next_daemon_removes_what_was_never_sealed(self, tier: Tier, folder: Path) -> None:
        draft = tier.create(KEY, 1, 10_000, allocate=True)
        os.close(draft.fd)
        assert bool(self.traces(folder)) is self.survives_restart
        second = self.make(folder)
        assert list(second.scan()) == []
        assert not self.traces(folder)
        second.close()

    def test_what_was_truncated_is_removed_by_the_next_daemon_or_cannot_be(self, tier: Tier, folder: Path) -> None:
        extent = put(tier, an_image())
        assert self.taken_when_damaged(tier, folder, extent, lambda fd: os.ftruncate(fd, extent.nbytes - 100)) == []
        assert not self.traces(folder)

    def test_a_flipped_bit_is_never_taken_for_checked_or_cannot_be(self, tier: Tier, folder: Path) -> None:
        extent = put(tier, an_image())
        taken = self.taken_when_damaged(tier, folder, extent, lambda fd: os.pwrite(fd, b"\xff", extent.nbytes - 10))
        assert True not in taken

    def test_a_scan_finds_replicas_without_hashing_them(
        self, tier: Tier, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        extent = put(tier, an_image(1 << 20))
        identity = identity_of(extent.fd)
        for second in self.next_daemon(tier, folder):
            read = _count_reads(monkeypatch)
            found = list(second.scan())
            assert sum(read) < 1000
            assert [(each.fresh, each.identity) for each in found] == [(False, identity)] * self.survives_restart
            assert second.skipped == 0

    def test_a_verified_replica_is_fresh_and_has_its_present_identity(self, tier: Tier) -> None:
        extent = put(tier, an_image())
        extent.fresh, extent.identity = False, None
        done: list[int] = []
        tier.verify(extent, threading.Event(), done.append)
        assert extent.fresh
        assert extent.identity == identity_of(extent.fd)
        assert done[-1] == extent.nbytes

    def test_verifying_finds_a_flipped_byte_and_leaves_the_replica_alone(self, tier: Tier, folder: Path) -> None:
        extent = put(tier, an_image())
        self.is_found_wrong(tier, folder, extent, lambda fd: os.pwrite(fd, b"\xff", extent.nbytes - 10), "hash to")

    def test_verifying_reads_the_bytes_though_no_time_of_the_file_has_changed(self, tier: Tier) -> None:
        extent = put(tier, an_image())
        if self.tamper_proof:
            return
        self.damage(extent, lambda fd: os.pwrite(fd, b"\xff", extent.nbytes - 10))
        extent.identity = identity_of(extent.fd)  # as after bits have rotted on a disk
        with pytest.raises(ImageError, match="hash to"):
            tier.verify(extent)

    def test_verifying_that_is_stopped_from_the_beginning_proves_nothing(self, tier: Tier) -> None:
        extent, stop = put(tier, an_image(100_000)), threading.Event()
        extent.fresh = False
        stop.set()
        with pytest.raises(DrainingError):
            tier.verify(extent, stop)
        assert not extent.fresh

    def test_a_sealed_replica_is_not_touched_any_more(self, tier: Tier) -> None:
        data = an_image()
        extent = put(tier, data)
        before = identity_of(extent.fd)
        other = put(tier, data, key="b" * 64)
        tier.verify(extent)
        time.sleep(0.05)
        assert identity_of(extent.fd) == before
        assert os.pread(extent.fd, len(data) + 1, 0) == data
        tier.free(other)
        assert identity_of(extent.fd) == before

    def test_verifying_finds_a_truncated_replica(self, tier: Tier, folder: Path) -> None:
        extent = put(tier, an_image())
        self.is_found_wrong(tier, folder, extent, lambda fd: os.ftruncate(fd, 100), "has 100 bytes")

    def test_verifying_survives_a_replica_that_is_truncated_meanwhile(
        self, tier: Tier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checking, "CHUNK_BYTES", 4096)
        extent = put(tier, an_image(100_000))
        if self.tamper_proof:
            return
        with pytest.raises(ImageError, match="ends at"):
            tier.verify(extent, None, lambda _: self.damage(extent, lambda fd: os.ftruncate(fd, 5000)))

    def test_verifying_what_is_no_image_says_so_though_its_digest_is_right(self, tier: Tier) -> None:
        extent = put(tier, b"\7" * 10_000)
        with pytest.raises(ImageError):
            tier.verify(extent)
        assert os.fstat(extent.fd).st_size == 10_000

    def test_verifying_stops_when_it_is_told_to_and_proves_nothing(
        self, tier: Tier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checking, "CHUNK_BYTES", 4096)
        extent = put(tier, an_image(100_000))
        extent.fresh, stop = False, threading.Event()
        done: list[int] = []

        def pace(done_bytes: int) -> None:
            done.append(done_bytes)
            stop.set()

        with pytest.raises(DrainingError, match="was not verified to its end"):
            tier.verify(extent, stop, pace)
        assert done == [4096]
        assert not extent.fresh

    def test_what_was_given_back_is_not_read_through_a_descriptor_of_another_file(
        self, tier: Tier, tmp_path: Path
    ) -> None:
        extent = put(tier, an_image())
        tier.free(extent)
        with (tmp_path / "another").open("wb") as another:
            os.dup2(another.fileno(), extent.fd)  # the kernel gives the number to the next file
        try:
            with pytest.raises(DrainingError, match="was given back before it was read"):
                tier.verify(extent)
        finally:
            os.close(extent.fd)

    def test_what_cannot_be_opened_is_left_alone_and_counted(
        self, tier: Tier, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(3):
            put(tier, an_image(), key=f"{number}" * 64)
        for second in self.next_daemon(tier, folder):
            before = self.traces(folder)
            with few_descriptors(left=1):
                taken = list(second.scan())
            assert self.traces(folder) == before
            assert len(taken) < 3
            assert 0 <= len(taken) + second.skipped - 3 * self.survives_restart < self.spaces
            assert ("Too many open files" in caplog.text) is self.survives_restart
            assert len(caplog.records) <= self.spaces
            for extent in taken:
                second.free(extent)

    def test_no_descriptor_left_is_a_lack_of_room_with_the_remedy(self, tier: Tier, folder: Path) -> None:
        with few_descriptors(left=0), pytest.raises(CapacityError, match=r"no descriptor left.*`ulimit -n`"):
            tier.create(KEY, 1, 4096, allocate=True)
        assert not self.traces(folder)
        assert "no descriptor left" in str(tier.explain(OSError(errno.EMFILE, "Too many open files"), 4096))

    def test_a_write_that_finds_no_room_is_explained_as_a_lack_of_room(self, tier: Tier) -> None:
        explained = tier.explain(OSError(errno.ENOSPC, "No space left on device"), 4096)
        assert isinstance(explained, CapacityError)
        other = OSError(errno.EIO, "Input/output error")
        assert tier.explain(other, 4096) is other

    def test_more_than_the_machine_has_is_a_capacity_error_and_leaves_nothing(self, tier: Tier, folder: Path) -> None:
        with pytest.raises(CapacityError):
            tier.create(KEY, 1, 1 << 50, allocate=True)
        assert not self.traces(folder)

    def test_two_generations_of_one_image_do_not_collide(self, tier: Tier) -> None:
        """Fill an image again while its last incarnation is still being freed."""
        older, newer = an_image(4096), an_image(8192)
        first, second = put(tier, older, generation=1), put(tier, newer, generation=2)
        assert os.pread(first.fd, len(newer), 0) == older
        assert os.pread(second.fd, len(newer), 0) == newer
        tier.free(first)
        assert os.pread(second.fd, len(newer), 0) == newer
        tier.free(second)

    def test_threads_may_work_side_by_side(self, tier: Tier) -> None:
        errors: list[Exception] = []

        def work(number: int) -> None:
            try:
                for turn in range(10):
                    tier.free(put(tier, an_image(), key=f"{number:x}" * 64, generation=turn))
            except Exception as error:  # the test gets it, whatever it is
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors

    def taken_when_damaged(self, tier: Tier, folder: Path, extent: Extent, how: Callable[[int], object]) -> list[bool]:
        """Damage a replica, or see it refused if the tier promises that.

        Returns:
            For each replica that the next daemon takes, whether it takes it for checked.
        """
        data = os.pread(extent.fd, extent.nbytes, 0)
        if self.tamper_proof:
            with pytest.raises(PermissionError):
                self.damage(extent, how)
            assert os.pread(extent.fd, extent.nbytes + 1, 0) == data
        else:
            self.damage(extent, how)
        tier.close()
        second = self.make(folder)
        taken = [each.fresh for each in second.scan()]
        second.close()
        return taken

    def next_daemon(self, tier: Tier, folder: Path) -> Iterator[Tier]:
        """Yield the tier of the daemon after this one, once; it is closed after the loop's body."""
        tier.close()
        second = self.make(folder)
        yield second
        second.close()

    def is_found_wrong(
        self, tier: Tier, folder: Path, extent: Extent, how: Callable[[int], object], words: str
    ) -> None:
        """Damage a replica and have it verified, or see the damage refused if the tier promises that."""
        if self.tamper_proof:
            with pytest.raises(PermissionError):
                self.damage(extent, how)
            tier.verify(extent)
            return
        self.damage(extent, how)
        extent.fresh = False
        before = self.traces(folder)
        with pytest.raises(ImageError, match=words):
            tier.verify(extent)
        assert not extent.fresh
        assert self.traces(folder) == before

    @staticmethod
    def damage(extent: Extent, how: Callable[[int], object]) -> None:
        """Open the replica's file for writing behind the tier's back, as its owner or root can."""
        path = f"/proc/self/fd/{extent.fd}"
        os.chmod(path, 0o600)
        fd = os.open(path, os.O_RDWR)
        try:
            how(fd)
        finally:
            os.close(fd)
            os.chmod(path, 0o400)


#: Program that fills the draft whose descriptor it is given with what it reads.
_FILL = """
import mmap, sys
data = sys.stdin.buffer.read()
with mmap.mmap(int(sys.argv[1]), len(data)) as mapping:
    mapping[:] = data
"""


def _count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of lengths of all that is read from descriptors from now on."""
    lengths: list[int] = []
    pread, preadv = os.pread, os.preadv

    def counted_pread(fd: int, length: int, offset: int) -> bytes:
        lengths.append(length)
        return pread(fd, length, offset)

    def counted_preadv(fd: int, rooms: Sequence[Any], offset: int, flags: int = 0) -> int:
        lengths.extend(map(len, rooms))
        return preadv(fd, rooms, offset, flags)

    monkeypatch.setattr(os, "pread", counted_pread)
    monkeypatch.setattr(os, "preadv", counted_preadv)
    return lengths
