"""The tier contract on the real tiers."""

# fault (damage): a segment is truncated or flipped

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import CapacityError, ConfigError
from trims.memory import shm
from trims.memory.memfd import SealedMemfd
from trims.memory.shm import PosixShm
from trims.testing.tiers import KEY, TierContract, an_image, put
from trims.tiers.cpu import CpuTier
from trims.tiers.disk import DiskTier

if TYPE_CHECKING:
    from collections.abc import Iterator


def prefix(folder: Path) -> str:
    return f"trims-test{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


class TestCpuTier(TierContract):
    def make(self, folder: Path, capacity_bytes: int = 1 << 20) -> CpuTier:
        return CpuTier(PosixShm(prefix(folder)), capacity_bytes)

    def traces(self, folder: Path) -> set[str]:
        return {name for name in os.listdir("/dev/shm") if name.startswith(prefix(folder))}

    def test_full_shared_memory_is_a_capacity_error_with_its_size(self, folder: Path) -> None:
        held = os.statvfs("/dev/shm")
        tier = self.make(folder)
        with pytest.raises(CapacityError, match=r"/dev/shm is full.*lower the cpu tier's capacity"):
            tier.create(KEY, 1, held.f_blocks * held.f_frsize + 4096, allocate=True)
        assert not self.traces(folder)

    def test_a_segment_that_was_made_writable_is_sealed_again_and_must_be_verified(
        self, tier: CpuTier, folder: Path
    ) -> None:
        label = put(tier, an_image()).label
        os.chmod(f"/dev/shm/{label}", 0o600)
        for second in self.next_daemon(tier, folder):
            (found,) = second.scan()
            assert os.fstat(found.fd).st_mode & 0o777 == 0o400
            assert not found.fresh
            assert second.hash_on_adoption

    def test_a_segment_of_another_prefix_is_not_touched(self, folder: Path) -> None:
        mine, other = self.make(folder), CpuTier(PosixShm(f"{prefix(folder)}other"), 1 << 20)
        extent = put(other, an_image())
        assert list(mine.scan()) == []
        assert os.pread(extent.fd, 8, 0) == an_image()[:8]
        other.free(extent)


class TestCpuTierInATmpfsOfItsOwn(TierContract):
    def make(self, folder: Path, capacity_bytes: int = 1 << 20) -> CpuTier:
        segments = self.segments(folder)
        segments.mkdir(exist_ok=True)
        return CpuTier(PosixShm("trims-own", segments), capacity_bytes)

    def traces(self, folder: Path) -> set[str]:
        return set(os.listdir(self.segments(folder)))

    @pytest.fixture(autouse=True)
    def removed(self, folder: Path) -> Iterator[None]:
        yield
        shutil.rmtree(self.segments(folder), ignore_errors=True)

    @staticmethod
    def segments(folder: Path) -> Path:
        return Path("/dev/shm") / prefix(folder)

    def test_a_folder_that_is_no_memory_is_refused_with_the_remedy(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match=r"not on a tmpfs.*mount -t tmpfs"):
            shm.check_folder(folder)
        shm.check_folder(Path("/dev/shm"))


class TestCpuTierOfSealedMemfds(TierContract):
    survives_restart = False
    tamper_proof = True

    def make(self, folder: Path, capacity_bytes: int = 1 << 20) -> CpuTier:
        return CpuTier(SealedMemfd(prefix(folder)), capacity_bytes)

    def traces(self, folder: Path) -> set[str]:
        names = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        found = {os.readlink(name) for name in names if os.path.islink(name)}  # the listing's own is gone
        return {name for name in found if name.startswith(f"/memfd:{prefix(folder)}")}

    def test_a_large_one_is_sealed_with_large_pages_and_without(self, folder: Path) -> None:
        data = an_image(5 << 20)
        for large_pages in (True, False):
            tier = CpuTier(SealedMemfd(prefix(folder)), 1 << 30, large_pages=large_pages)
            extent = put(tier, data)
            assert os.pread(extent.fd, len(data), 0) == data
            tier.free(extent)
        assert not self.traces(folder)


class TestDiskTier(TierContract):
    def make(self, folder: Path, capacity_bytes: int = 1 << 20) -> DiskTier:
        return DiskTier(folder / "images", capacity_bytes)

    def traces(self, folder: Path) -> set[str]:
        images = folder / "images"
        return set(os.listdir(images)) if images.exists() else set()

    def test_a_full_disk_is_a_capacity_error(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(fd: int, offset: int, length: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(CapacityError, match="disk under"):
            self.make(folder).create(KEY, 1, 4096, allocate=True)
        assert not self.traces(folder)

    def test_an_image_reads_with_any_safetensors_reader(self, folder: Path) -> None:
        from safetensors.numpy import load_file

        tier = self.make(folder)
        extent = put(tier, an_image(100))
        assert load_file(extent.label)["w"].tolist() == [7] * 100
        tier.free(extent)

    def test_files_of_others_are_left_alone(self, folder: Path) -> None:
        tier = self.make(folder)
        (folder / "images").mkdir()
        (folder / "images" / "notes.txt").write_text("mine")
        assert list(tier.scan()) == []
        assert (folder / "images" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("suite", [TestCpuTier(), TestDiskTier()], ids=["cpu", "disk"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_what_a_failing_disk_cannot_read_is_left_alone_with_one_line(
    suite: TestCpuTier | TestDiskTier,
    code: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tier = suite.make(folder)
    for number in range(3):
        put(tier, an_image(), key=f"{number}" * 64)

    def fails(fd: int, length: int, offset: int) -> bytes:
        raise OSError(code, os.strerror(code))

    for second in suite.next_daemon(tier, folder):
        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", fails)
            assert list(second.scan()) == []
        assert second.skipped == 3
        (line,) = caplog.records
        assert f"3 at {second.place} are left alone, such as " in line.getMessage()
        assert line.getMessage().endswith(os.strerror(code))
    for last in suite.next_daemon(second, folder):
        for extent in list(last.scan()):
            last.free(extent)
        assert last.skipped == 0
    assert not suite.traces(folder)


def test_the_prefix_of_the_other_is_not_mine() -> None:
    """`trims-abc` must not scan `trims-abcdef`: a name is a prefix and a dot."""
    assert shm.parse_name("trims-abc", "trims-abc.k.d") == ("k", "d")
