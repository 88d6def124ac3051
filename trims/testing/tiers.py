"""The contract every tier keeps, as an inheritable suite, and tiers that fail on purpose.

A plugin's tests subclass `TierContract` and say how to make the tier and how to look behind its back.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import blake3
import pytest

from trims.core.errors import CapacityError
from trims.image.plan import SourceTensor, plan_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.core.place import Place
    from trims.tiers.base import Draft, Extent, Tier

KEY = "a" * 64


def an_image(nbytes: int = 4096) -> bytes:
    """The bytes of a small image."""
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
        survives_restart: The next daemon finds what was sealed. Where not, it must find nothing.
        tamper_proof: Nobody can change a sealed replica, root included. Where not, `scan` must find out who did.
    """

    survives_restart = True
    tamper_proof = False

    def make(self, folder: Path, capacity_bytes: int = 1 << 20) -> Tier:
        """A tier; the same folder again finds the same replicas."""
        raise NotImplementedError

    def traces(self, folder: Path) -> set[str]:
        """Names of everything the tier keeps, found without its help."""
        raise NotImplementedError

    @pytest.fixture
    def tier(self, folder: Path) -> Iterator[Tier]:
        """A tier that is emptied after the test."""
        made = self.make(folder)
        yield made
        made.close()
        last = self.make(folder)
        for extent in list(last.scan()):
            last.free(extent)
        last.close()
        assert not self.traces(folder)

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

    def test_more_than_the_machine_has_is_a_capacity_error_and_leaves_nothing(self, tier: Tier, folder: Path) -> None:
        with pytest.raises(CapacityError):
            tier.create(KEY, 1, 1 << 50, allocate=True)
        assert not self.traces(folder)

    def test_two_generations_of_one_image_do_not_collide(self, tier: Tier) -> None:
        first = tier.create(KEY, 1, 4096, allocate=True)
        second = tier.create(KEY, 2, 4096, allocate=True)
        tier.abort(first)
        tier.abort(second)

    def test_threads_may_work_side_by_side(self, tier: Tier) -> None:
        errors: list[Exception] = []

        def work(number: int) -> None:
            try:
                for turn in range(10):
                    tier.free(put(tier, an_image(), key=f"{number:x}" * 64, generation=turn))
            except Exception as error:  # told to the test, whatever it is
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


class WrappedTier:
    """A tier round another; subclasses add faults, delays or counting."""

    def __init__(self, inner: Tier) -> None:
        self.inner = inner

    @property
    def place(self) -> Place:
        """As the inner one's."""
        return self.inner.place

    @property
    def capacity_bytes(self) -> int:
        """As the inner one's."""
        return self.inner.capacity_bytes

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """See `Tier.create`."""
        return self.inner.create(key, generation, nbytes, allocate=allocate)

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """See `Tier.seal`."""
        return self.inner.seal(draft, key, digest)

    def abort(self, draft: Draft) -> None:
        """See `Tier.abort`."""
        self.inner.abort(draft)

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """See `Tier.explain`."""
        return self.inner.explain(error, nbytes)

    def free(self, extent: Extent) -> None:
        """See `Tier.free`."""
        self.inner.free(extent)

    def scan(self) -> Iterator[Extent]:
        """See `Tier.scan`."""
        return self.inner.scan()

    def close(self) -> None:
        """See `Tier.close`."""
        self.inner.close()


class FaultyTier(WrappedTier):
    """Raises what the test put into `faults` under the name of the method, once."""

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self.faults: dict[str, Exception] = {}

    def _maybe(self, method: str) -> None:
        if method in self.faults:
            raise self.faults.pop(method)

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """Fails before anything is made."""
        self._maybe("create")
        return super().create(key, generation, nbytes, allocate=allocate)

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """Fails as the contract says: the draft is used up."""
        if "seal" in self.faults:
            self.inner.abort(draft)
            self._maybe("seal")
        return super().seal(draft, key, digest)


class SlowTier(WrappedTier):
    """Stops inside `create` until the test lets it go on: stages races instead of hoping for them."""

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """Says that it was entered, then waits."""
        self.entered.set()
        assert self.go_on.wait(60), "the test forgot to let the tier go on"
        return super().create(key, generation, nbytes, allocate=allocate)
