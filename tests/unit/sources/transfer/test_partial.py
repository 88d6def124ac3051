"""Partial files: what a journal proves, and what is fetched again."""

from __future__ import annotations

import errno
import os
import random
import struct
from typing import TYPE_CHECKING

import pytest
from awscrt import checksums as crt

from trims.core.errors import NoSpaceError
from trims.sources.base import RemoteFile
from trims.sources.transfer import partial
from trims.sources.transfer.partial import JOURNAL, PIECE_BYTES

if TYPE_CHECKING:
    from pathlib import Path

DATA = random.Random(2).randbytes(4 * PIECE_BYTES + 99)
FILE = RemoteFile("m", len(DATA), '"v1"')


def fill(path: Path, pieces: tuple[int, ...], file: RemoteFile = FILE) -> tuple[list[int], list[int]]:
    """Open the partial file, fill some pieces. Return the bytes that were there, and the pieces that are missing."""
    there: list[int] = []
    with partial.on_disk(path, file, (), there.append) as data:
        missing = data.missing()
        for piece in pieces:
            with data.room(piece) as room:
                room[:] = DATA[piece * PIECE_BYTES :][: len(room)]
            data.filled(piece)
    return there, missing


def test_a_transfer_goes_on_with_the_pieces_that_are_proven(tmp_path: Path) -> None:
    assert fill(tmp_path / "p", (1, 4)) == ([0], [0, 1, 2, 3, 4])
    assert fill(tmp_path / "p", (0,)) == ([PIECE_BYTES + 99], [0, 2, 3])
    with partial.on_disk(tmp_path / "p", FILE, ("crc32c",), lambda _: None) as data:
        for piece in (2, 3):
            with data.room(piece) as room:
                room[:] = DATA[piece * PIECE_BYTES :][: len(room)]
            data.filled(piece)
        assert data.complete
        assert data.combined() == {"crc64nvme": f"{crt.crc64nvme(DATA):016x}", "crc32c": f"{crt.crc32c(DATA):08x}"}
    assert (tmp_path / "p").read_bytes() == DATA
    partial.remove(tmp_path / "p")
    partial.remove(tmp_path / "p")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "other",
    [
        RemoteFile("m", len(DATA), '"v2"'),
        RemoteFile("m", len(DATA) - 1, '"v1"'),
        RemoteFile("m", len(DATA), '"v1"', {"sha256": "0" * 64}),
        RemoteFile("m", len(DATA)),
    ],
    ids=["version", "length", "checksum", "no proof"],
)
def test_bytes_of_another_file_are_not_taken_over(other: RemoteFile, tmp_path: Path) -> None:
    fill(tmp_path / "p", (0, 1))
    there, missing = fill(tmp_path / "p", (), other)
    assert (there, len(missing)) == ([0], 5)


@pytest.mark.parametrize("proof", [{"version": ""}, {"version": "", "checksums": {"sha256": "0" * 64}}])
def test_a_file_is_resumed_only_if_its_source_says_what_it_is(proof: dict[str, object], tmp_path: Path) -> None:
    file = RemoteFile("m", len(DATA), **proof)  # type: ignore[arg-type]
    fill(tmp_path / "p", (0,), file)
    assert fill(tmp_path / "p", (), file)[0] == [PIECE_BYTES if file.checksums else 0]


def _cut(raw: bytes) -> bytes:
    return raw[:-5]


def _other_format(raw: bytes) -> bytes:
    return raw.replace(b'"format": 1', b'"format": 2')


def _no_head(raw: bytes) -> bytes:
    return raw[10:]


def _wrong_sum(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


def _out_of_range(raw: bytes) -> bytes:
    return raw + struct.pack("<IQ", 4_000_000_000, 7)


def _empty(raw: bytes) -> bytes:
    return raw[:0]


# fault (sources): a damaged journal -> nothing; unproven pieces are fetched again
@pytest.mark.parametrize(
    ("damage", "there"),
    [(_cut, 1), (_other_format, 0), (_no_head, 0), (_wrong_sum, 1), (_out_of_range, 2), (_empty, 0)],
)
def test_of_a_damaged_journal_only_what_it_proves_counts(damage: object, there: int, tmp_path: Path) -> None:
    fill(tmp_path / "p", (0, 1))
    journal = tmp_path / f"p{JOURNAL}"
    journal.write_bytes(damage(journal.read_bytes()))  # type: ignore[operator]
    assert fill(tmp_path / "p", (2,))[0] == [there * PIECE_BYTES]
    assert fill(tmp_path / "p", ())[0] == [(there + 1) * PIECE_BYTES], "a record behind a torn one is read"


def test_data_that_was_damaged_or_cut_is_fetched_again(tmp_path: Path) -> None:
    fill(tmp_path / "p", (0, 1))
    with (tmp_path / "p").open("r+b") as file:
        file.write(b"x")
    assert fill(tmp_path / "p", ())[0] == [PIECE_BYTES]
    os.truncate(tmp_path / "p", PIECE_BYTES)
    assert fill(tmp_path / "p", ())[0] == [0]


def test_a_disk_without_room_for_a_record_costs_a_resume_and_no_transfer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "p", (0,))
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(JOURNAL):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    assert fill(tmp_path / "p", (1, 2)) == ([PIECE_BYTES], [1, 2, 3, 4])
    monkeypatch.undo()
    assert fill(tmp_path / "p", ())[0] == [PIECE_BYTES]


def test_a_disk_without_room_says_so_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(NoSpaceError) as raised:
        fill(tmp_path / "p", (), RemoteFile("m", 1 << 60, '"v1"'))
    assert raised.value.room_bytes is not None
    assert (tmp_path / "p").stat().st_size == 0
