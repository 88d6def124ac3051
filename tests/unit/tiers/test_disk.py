"""The disk tier: names that state key and digest, temporary names while filling, and files of others."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import blake3
import pytest

from trims.core.errors import CapacityError
from trims.testing.tiers import KEY, an_image, put
from trims.tiers.disk import DiskTier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = an_image(5000)


@pytest.fixture
def tier(folder: Path) -> Iterator[DiskTier]:
    made = DiskTier(folder / "images", 1 << 20)
    yield made
    made.close()


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "images"))


def test_a_sealed_image_is_named_by_its_key_and_its_digest(tier: DiskTier, folder: Path) -> None:
    extent = put(tier, DATA)
    assert names(folder) == [f"{KEY}.{blake3.blake3(DATA).hexdigest()}.safetensors"]
    assert extent.label == str(folder / "images" / names(folder)[0])
    assert os.stat(extent.label).st_mode & 0o777 == 0o400


def test_a_draft_has_a_temporary_name_and_its_blocks_until_it_is_sealed(tier: DiskTier, folder: Path) -> None:
    draft = tier.create(KEY, 7, 100_000, allocate=False)
    assert names(folder) == [f"{KEY[:16]}-{os.getpid()}-7.filling"]
    assert os.fstat(draft.fd).st_blocks * 512 >= 100_000, "a disk that fills up says so first"
    tier.abort(draft)
    assert names(folder) == []


def test_a_second_draft_of_the_same_generation_is_refused(tier: DiskTier) -> None:
    draft = tier.create(KEY, 1, 100, allocate=False)
    with pytest.raises(FileExistsError):
        tier.create(KEY, 1, 100, allocate=False)
    tier.abort(draft)


def test_a_scan_removes_what_was_never_finished_and_leaves_files_of_others(
    tier: DiskTier, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = put(tier, DATA)
    tier.close()
    images = folder / "images"
    (images / f"{KEY[:16]}-1-1.filling").write_bytes(b"half")
    (images / "notes.txt").write_text("mine")
    (images / f"{KEY}.safetensors").write_bytes(DATA)
    (found,) = tier.scan()
    assert (found.label, found.key, found.digest, found.fresh) == (kept.label, KEY, kept.digest, False)
    assert names(folder) == sorted([os.path.basename(kept.label), "notes.txt", f"{KEY}.safetensors"])
    assert caplog.text.count("is not an image of trims; it is left alone") == 2
    assert tier.skipped == 0


def test_a_link_with_the_name_of_an_image_is_not_followed(tier: DiskTier, folder: Path) -> None:
    extent = put(tier, DATA)
    tier.close()
    elsewhere = folder / "elsewhere"
    os.rename(extent.label, elsewhere)
    os.symlink(elsewhere, extent.label)
    assert list(tier.scan()) == []
    assert (tier.skipped, elsewhere.exists()) == (1, True)


def test_an_image_that_cannot_be_renamed_leaves_neither_name(
    tier: DiskTier, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(source: str, target: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OSError, match="Input/output error"):
        put(tier, DATA)
    assert names(folder) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_a_lack_of_room_with_folder_size_and_remedy(tier: DiskTier, folder: Path, code: int) -> None:
    error = tier.explain(OSError(code, os.strerror(code)), 2048)
    assert isinstance(error, CapacityError)
    assert str(error) == f"the disk under {folder / 'images'} is full: 2.0 KiB needed; free some, or move the folder"


def test_another_error_of_the_disk_stays_what_it_is(tier: DiskTier) -> None:
    error = OSError(errno.EIO, "Input/output error")
    assert tier.explain(error, 2048) is error


def test_an_image_that_is_freed_twice_is_gone_once(tier: DiskTier, folder: Path) -> None:
    extent = put(tier, DATA)
    for _ in range(2):
        tier.free(extent)
    assert names(folder) == []


def test_a_disk_folder_that_cannot_be_listed_stops_no_daemon(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "images").write_text("a file where the folder should be")
    tier = DiskTier(folder / "images", 1 << 20)
    assert list(tier.scan()) == []
    assert tier.skipped == 1
    assert "Not a directory" in caplog.text
