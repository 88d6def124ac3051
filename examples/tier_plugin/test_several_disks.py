"""The shipped contract suite, and what is particular to this tier."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import several_disks
from several_disks import Disk, SeveralDisks, open_several

from trims.core.errors import CapacityError, ConfigError
from trims.core.place import CPU, DISK
from trims.testing.tiers import KEY, TierContract, an_image, put
from trims.tiers.base import TierSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.place import Place

NAMES = ("a", "b")


def make(folder: Path, names: tuple[str, ...] = NAMES, capacity_bytes: int = 1 << 20) -> SeveralDisks:
    for name in names:
        (folder / name).mkdir(exist_ok=True)
    return open_several(settings(",".join(str(folder / name) for name in names), capacity_bytes=capacity_bytes))


def settings(argument: str, place: Place = DISK, capacity_bytes: int = 1 << 20) -> TierSettings:
    return TierSettings(place, capacity_bytes, Path("/nonexistent"), "trims-test", argument)


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How much room there is on each disk."""
    found = {"a": 1000, "b": 2000}
    monkeypatch.setattr(Disk, "room_bytes", lambda disk: found[disk.folder.name])
    return found


class TestSeveralDisks(TierContract):
    """All that every tier must keep; each image goes to another disk than the one before."""

    spaces = len(NAMES)

    @pytest.fixture(autouse=True)
    def alternate(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The disk that was used has less room."""
        used: dict[Path, int] = {}
        real = several_disks.DiskTier.create

        def create(tier: several_disks.DiskTier, *given: object, **named: object) -> object:
            used[tier._folder.parent] = used.get(tier._folder.parent, 0) + 1
            return real(tier, *given, **named)

        monkeypatch.setattr(several_disks.DiskTier, "create", create)
        monkeypatch.setattr(Disk, "room_bytes", lambda disk: 1000 - used.get(disk.folder, 0))

    def make(self, folder: Path, capacity_bytes: int = 1 << 20) -> SeveralDisks:
        """See `TierContract.make`."""
        return make(folder, capacity_bytes=capacity_bytes)

    def traces(self, folder: Path) -> set[str]:
        """See `TierContract.traces`."""
        return {str(path) for name in NAMES for path in (folder / name).glob("*/*")}

    def test_images_lie_on_both_disks(self, tier: SeveralDisks, folder: Path) -> None:
        """The suite would say little if they all lay on one."""
        labels = {put(tier, an_image(), key=f"{number}" * 64).label for number in range(4)}
        assert labels == self.traces(folder)
        assert [len(list((folder / name).glob("*/*"))) for name in NAMES] == [2, 2]


def where(tier: SeveralDisks, key: str = KEY) -> str:
    """The disk that a new image goes to."""
    extent = put(tier, an_image(), key)
    tier.leave(extent)
    return Path(extent.label).parent.parent.name


def test_an_image_goes_where_most_room_is(tmp_path: Path, rooms: dict[str, int]) -> None:
    tier = make(tmp_path)
    assert where(tier) == "b"
    rooms["a"] = 3000
    assert where(tier) == "a"


@pytest.mark.usefixtures("rooms")
def test_a_disk_that_is_full_after_all_gives_way_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[int, int, int], None] = os.posix_fallocate
    full = {"b"}

    def allocate(fd: int, offset: int, length: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{fd}")).parent.parent.name in full:
            raise OSError(28, "No space left on device")
        real(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    tier = make(tmp_path)
    assert where(tier) == "a"
    full.add("a")
    with pytest.raises(CapacityError, match=rf"the disk under {tmp_path}/a/trims-test is full"):
        tier.create(KEY, 1, 4096, allocate=True)


def test_a_write_that_finds_no_room_is_told_with_all_disks(tmp_path: Path) -> None:
    explained = make(tmp_path).explain(OSError(28, "No space left on device"), 4096)
    assert isinstance(explained, CapacityError)
    assert f"the disk under {tmp_path}/a, {tmp_path}/b is full" in str(explained)


def test_nothing_is_written_to_the_empty_folder_of_a_disk_that_went(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disks = [replace(disk, device=-7) for disk in make(tmp_path)._disks]
    tier = SeveralDisks(disks, 1 << 20)
    with pytest.raises(CapacityError, match=r"none of the disks .*/a, .*/b is there; mount them"):
        tier.create(KEY, 1, 4096, allocate=True)
    assert "/a is not the disk it was when the daemon started; nothing is written there" in caplog.text
    assert list(tmp_path.glob("*/*")) == []
    (tmp_path / "a").rmdir()
    assert disks[0].room_bytes() == -1


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("", "'' is not the absolute path of a folder"),
        ("{a},/nonexistent/b", "'/nonexistent/b' is not the absolute path of a folder that is there; mount it"),
        ("{a},", "'' is not"),
        ("a", "'a' is not the absolute"),
        ("{a},{a}/../a", "a is named twice; leave one out"),
    ],
)
def test_a_folder_that_cannot_be_a_disk_is_refused_by_name(tmp_path: Path, argument: str, said: str) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ConfigError, match=said):
        open_several(settings(argument.format(a=tmp_path / "a")))


def test_it_is_no_tier_for_memory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="they cannot be the tier at cpu"):
        open_several(settings(str(tmp_path), CPU))


def test_two_daemons_have_folders_of_their_own_on_one_disk(tmp_path: Path) -> None:
    ours = make(tmp_path)
    theirs = open_several(TierSettings(DISK, 1 << 20, tmp_path, "trims-other", f"{tmp_path}/a"))
    theirs.create(KEY, 1, 4096, allocate=True)
    assert list(ours.scan()) == []
    assert len(list(tmp_path.glob("a/trims-other/*"))) == 1
