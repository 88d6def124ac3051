"""Reading files for their digests: in turns, from where the last one ended, and no further than is wanted."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import blake3
import pytest

from trims.core.errors import ArtifactChangedError, ArtifactError
from trims.store.catalog import identity_of
from trims.store.resolve import hashing
from trims.store.resolve.hashing import (
    NotWantedError,
    Part,
    Progress,
    Reading,
    ReplacedError,
    TurnOverError,
    begin,
    read_digests,
)

if TYPE_CHECKING:
    from pathlib import Path

DATA = bytes(range(256)) * 40
TURN = 1000


@pytest.fixture
def file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of ten turns and a little."""
    monkeypatch.setattr(hashing, "TURN_BYTES", TURN)
    monkeypatch.setattr(hashing, "_READ_BYTES", 300)
    path = folder / "file"
    path.write_bytes(DATA)
    return path


def which(file: Path, identity: str = "", *, with_sha256: bool = True) -> tuple[str, str, bool]:
    return str(file), identity or identity_of(file), with_sha256


def touched(file: Path) -> tuple[str, str, bool]:
    """The same file at another time."""
    return which(file, f"{identity_of(file)}9")


def turns(file: Path, progress: Progress, part: Part) -> tuple[hashing.Digests, int]:
    """Read it to its end; returns the digests and how many turns were over before."""
    over = 0
    while True:
        try:
            return read_digests(file, part, Reading(progress=progress)), over
        except TurnOverError:
            over += 1


def test_a_file_that_is_read_in_turns_has_the_digests_of_all_its_bytes(file: Path) -> None:
    progress = Progress()
    part = progress.part(which(file), certain=True)
    found, over = turns(file, progress, part)
    assert found == (blake3.blake3(DATA).hexdigest(), hashlib.sha256(DATA).hexdigest(), True)
    assert over == len(DATA) // 1200, "a turn ends with the piece that completes it"
    assert progress.read_bytes == len(DATA), "nothing is read twice"


def test_without_a_progress_a_file_is_read_to_its_end(file: Path) -> None:
    part = begin(which(file, with_sha256=False), certain=False)
    assert read_digests(file, part, Reading()) == (blake3.blake3(DATA).hexdigest(), None, False)


def test_an_empty_file_is_no_artifact(folder: Path) -> None:
    (folder / "empty").write_bytes(b"")
    with pytest.raises(ArtifactError, match="is empty"):
        read_digests(folder / "empty", begin(which(folder), certain=True), Reading())


def test_what_was_read_is_kept_for_the_next_lookup_of_the_same_file(file: Path) -> None:
    progress = Progress()
    with pytest.raises(NotWantedError):
        read_digests(file, progress.part(which(file), certain=True), Reading(progress=progress, wanted=lambda: False))
    kept = progress.keep()
    assert kept is not None
    found, _ = turns(file, kept, kept.part(which(file), certain=True))
    assert found.blake3 == blake3.blake3(DATA).hexdigest()
    assert kept.read_bytes == len(DATA) - 300


def test_a_file_that_changed_since_an_earlier_lookup_is_read_from_its_beginning(file: Path) -> None:
    progress = Progress()
    with pytest.raises(TurnOverError):
        read_digests(file, progress.part(which(file), certain=True), Reading(progress=progress))
    kept = progress.keep()
    assert kept is not None
    assert kept.part(touched(file), certain=True).done_bytes == 0


def test_a_file_that_changes_between_two_turns_is_read_from_its_beginning(file: Path) -> None:
    progress = Progress()
    with pytest.raises(TurnOverError):
        read_digests(file, progress.part(which(file), certain=True), Reading(progress=progress))
    with pytest.raises(ArtifactChangedError, match="changed while it was read"):
        progress.part(touched(file), certain=True)
    assert progress.part(touched(file), certain=True).done_bytes == 0


def test_a_file_that_takes_the_place_of_one_that_is_read_is_begun_with(file: Path) -> None:
    progress = Progress()
    with pytest.raises(TurnOverError):
        read_digests(file, progress.part(which(file), certain=True), Reading(progress=progress))
    replace(file)
    with pytest.raises(ReplacedError):
        progress.part(which(file), certain=True)
    found, _ = turns(file, progress, progress.part(which(file), certain=True))
    assert found.blake3 == blake3.blake3(DATA[::-1]).hexdigest()


@pytest.mark.parametrize("how", ["replaced", "touched"])
def test_a_file_that_changes_is_not_read_to_its_end(how: str, file: Path) -> None:
    part, error = begin(which(file), certain=True), ReplacedError if how == "replaced" else ArtifactChangedError

    def changes() -> bool:
        if part.done_bytes == 900:
            replace(file) if how == "replaced" else os.utime(file, (1, 1))
        return True

    with pytest.raises(error):
        read_digests(file, part, Reading(wanted=changes))
    assert part.done_bytes == 900


def replace(file: Path) -> None:
    """Rename another file over it, as publishers do."""
    fresh = file.with_name("fresh")
    fresh.write_bytes(DATA[::-1])
    fresh.replace(file)


def test_a_file_that_was_read_whole_is_not_read_again_by_the_same_lookup(file: Path) -> None:
    progress = Progress()
    found, _ = turns(file, progress, progress.part(which(file), certain=False))
    progress.remember(which(file), found)
    assert progress.known(which(file), certain=False) == found
    assert progress.known(which(file), certain=True) is None, "it may have been written while it was read"
    assert progress.known(touched(file), certain=False) is None
    assert progress.keep() is None
