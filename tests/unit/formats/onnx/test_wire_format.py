"""A protobuf file walked field by field, and fields written as protobuf writes them."""

from __future__ import annotations

import contextlib
import os
import random
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ArtifactError, NotInPlaceError
from trims.formats.onnx.wire_format import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    WireFile,
    bytes_field,
    head_of,
    number_field,
    varint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    #: Writes bytes to a file and opens it.
    Opened = Callable[..., WireFile]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    with contextlib.ExitStack() as stack:

        def open_bytes(data: bytes, most_fields: int = 1000, *too_many: type[NotInPlaceError]) -> WireFile:
            path = tmp_path / "m.onnx"
            path.write_bytes(data)
            fd = os.open(path, os.O_RDONLY)
            stack.callback(os.close, fd)
            return WireFile(path, fd, most_fields, *too_many)

        yield open_bytes


def test_every_kind_of_field_is_found_with_its_place(opened: Opened) -> None:
    parts = [number_field(1, 300), bytes_field(2, b"text"), b"\x19" + bytes(8), b"\x25" + bytes(4)]
    file = opened(b"".join(parts))
    found = list(file.fields(0, file.nbytes))
    assert [(each.number, each.wire) for each in found] == [(1, VARINT), (2, LENGTH), (3, FIXED64), (4, FIXED32)]
    assert [each.end - each.start for each in found] == [len(part) for part in parts]
    assert file.read(found[1].begin, found[1].end) == b"text"
    assert found[1].nbytes == 4
    assert file.varint(found[0].begin, found[0].end) == (300, found[0].end)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 1 << 32, (1 << 64) - 1, -1, -(1 << 63)])
def test_a_number_that_is_written_is_read_again(opened: Opened, value: int) -> None:
    data = varint(value)
    assert opened(data).varint(0, len(data)) == (value & (1 << 64) - 1, len(data))


def test_a_field_is_written_in_two_parts_or_one() -> None:
    assert head_of(300, 5) + b"bytes" == bytes_field(300, b"bytes")


def test_what_is_large_is_stepped_over_and_read_at_once_on_demand(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(bytes_field(9, bytes(1 << 20)) + number_field(1, 2))
    lengths, pread = [], os.pread

    def counting(fd: int, length: int, offset: int) -> bytes:
        lengths.append(length)
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", counting)
    large, small = file.fields(0, file.nbytes)
    assert sum(lengths) < 20_000
    assert (large.nbytes, small.number) == (1 << 20, 1)
    assert file.read_all(large.begin, large.end) == bytes(1 << 20)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x0b", "begins no field"),
        (b"\x0a\x05abc", "leaves its message"),
        (b"\x00\x00", "leaves its message"),
        (b"\x08" + b"\xff" * 11, "has no end"),
        (b"\x80", "has no end"),
        (b"\x09\x00", "leaves its message"),
    ],
)
def test_what_is_no_message_is_an_artifact_error(opened: Opened, data: bytes, words: str) -> None:
    file = opened(data)
    with pytest.raises(ArtifactError, match=rf"m\.onnx is not an ONNX model that can be read: .*{words}"):
        list(file.fields(0, file.nbytes))


def test_a_walk_of_too_many_steps_ends(opened: Opened) -> None:
    file = opened(number_field(1, 0) * 11, 10)
    with pytest.raises(ArtifactError, match="more than 10 parts"):
        list(file.fields(0, file.nbytes))
    file = opened(number_field(1, 0) * 11, 10, NotInPlaceError)
    with pytest.raises(NotInPlaceError, match="more than 10 parts"):
        list(file.fields(0, file.nbytes))


def test_bytes_that_are_gone_meanwhile_are_told(opened: Opened) -> None:
    with pytest.raises(ArtifactError, match="it ends at byte 4: truncated meanwhile"):
        opened(bytes(4)).read_all(0, 5)


def test_random_bytes_give_fields_inside_the_file_or_an_error(opened: Opened) -> None:
    chance = random.Random(0)
    for _ in range(200):
        file = opened(chance.randbytes(chance.randrange(60)))
        with contextlib.suppress(ArtifactError):
            assert all(0 <= each.start < each.begin <= each.end <= file.nbytes for each in file.fields(0, file.nbytes))
