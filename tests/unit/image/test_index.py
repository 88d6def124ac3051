"""The binary index: every lie in it is noticed, and a layout comes out as it went in."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import TENSORS, check, data_start

from trims.core.errors import ArtifactError, ImageError
from trims.core.layout import Layout, TensorSpec
from trims.image.index import (
    HEADER,
    MAGIC,
    MAX_HEADER_BYTES,
    RECORD,
    decode_header,
    decode_index,
    encode_index,
    header_length,
    index_size,
)
from trims.image.reader import ImageView


@pytest.mark.parametrize(
    "field", range(1, 8), ids=["tensors", "dimensions", "names", "size", "program at", "program", "data"]
)
@pytest.mark.parametrize("change", [-1, 1, 1 << 30])
def test_a_lie_in_the_index_header_is_noticed(image: bytearray, field: int, change: int) -> None:
    start = data_start(image)
    values = list(HEADER.unpack_from(image, start))
    values[field] = max(0, values[field] + change)
    HEADER.pack_into(image, start, *values)
    with pytest.raises(ImageError):
        check(image)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0, 0, 0, HEADER.size, 0, 0, HEADER.size - 1), "which its own counts contradict"),
        ((0, 0, 0, HEADER.size, 60, 5, HEADER.size), "program lies outside"),
    ],
)
def test_an_index_header_that_cannot_be_true_is_refused_before_the_table_is_read(
    values: tuple[int, ...], words: str
) -> None:
    with pytest.raises(ImageError, match=words):
        decode_header(HEADER.pack(MAGIC, *values))


@pytest.mark.parametrize("field", range(7), ids=["name at", "name", "offset", "first", "dtype", "rank", "zero"])
@pytest.mark.parametrize("record", range(3))
@pytest.mark.parametrize("change", [-1, 1, 64, 255])
def test_a_lie_in_a_record_of_the_index_is_noticed(image: bytearray, record: int, field: int, change: int) -> None:
    at = data_start(image) + HEADER.size + record * RECORD.size
    values = list(RECORD.unpack_from(image, at))
    limit = [1 << 32, 1 << 32, 1 << 64, 1 << 32, 256, 256, 1 << 16][field]
    values[field] = (values[field] + change) % limit
    RECORD.pack_into(image, at, *values)
    with pytest.raises(ImageError):
        check(image)


def test_every_flipped_byte_of_the_index_is_noticed(image: bytearray) -> None:
    start = data_start(image)
    size = ImageView(memoryview(image)).index_header.index_bytes
    unused = range(start + HEADER.size - 8, start + HEADER.size)
    for at in (at for at in range(start, start + size) if at not in unused):
        image[at] ^= 0x41
        with pytest.raises(ImageError):
            check(image)
        image[at] ^= 0x41
    check(image)


@given(TENSORS, st.integers(0, 1 << 40), st.integers(0, 1 << 30))
def test_a_layout_comes_out_of_the_index_as_it_went_in(
    described: dict[str, tuple[str, tuple[int, ...]]], program_offset: int, program_bytes: int
) -> None:
    layout = Layout.of(
        TensorSpec(name, dtype, shape, number * 4096) for number, (name, (dtype, shape)) in enumerate(described.items())
    )
    data = encode_index(layout, program_offset=program_offset, program_bytes=program_bytes, data_bytes=1 << 50)
    assert len(data) == index_size(layout)
    assert decode_index(data + b"weights") == layout
    header = decode_header(data)
    assert (header.tensors, header.index_bytes, header.data_bytes) == (len(described), len(data), 1 << 50)
    assert (header.program_offset, header.program_bytes) == (program_offset, program_bytes)


def test_a_name_that_is_not_unicode_is_refused_by_name() -> None:
    with pytest.raises(ImageError, match=r"tensor name '\\ud800' is not valid Unicode"):
        index_size(Layout.of([TensorSpec("\ud800", "U8", (1,), 0)]))


def test_a_name_that_comes_twice_in_an_index_is_refused() -> None:
    layout = Layout({str(number): TensorSpec("w", "U8", (1,), 0) for number in range(2)})
    data = encode_index(layout, program_offset=0, program_bytes=0, data_bytes=1 << 20)
    with pytest.raises(ImageError, match="describes 2 tensors by 1 names"):
        decode_index(data)


def test_names_of_the_index_that_are_not_utf_8_are_refused() -> None:
    data = encode_index(
        Layout.of([TensorSpec("w", "U8", (1,), 0)]), program_offset=0, program_bytes=0, data_bytes=1 << 20
    )
    with pytest.raises(ImageError, match="the tensor names of the index are not UTF-8"):
        decode_index(data[:-1] + b"\xff")


def test_a_table_longer_than_its_data_block_is_refused() -> None:
    data = encode_index(
        Layout.of([TensorSpec("w", "U8", (1,), 0)]), program_offset=0, program_bytes=0, data_bytes=1 << 20
    )
    with pytest.raises(ImageError, match=rf"claims {len(data)} bytes of a block of {len(data) - 1}"):
        decode_index(data[:-1])


@pytest.mark.parametrize(
    ("prefix", "file_bytes", "words"),
    [
        (b"", 0, "too short"),
        (b"\x01\0\0", 3, "too short"),
        (struct.pack("<Q", 100), 50, "the file has 50: truncated"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1), 1 << 40, "are refused"),
        (struct.pack("<Q", 100_000_000), 1 << 40, "claims 100000000 bytes"),
        (struct.pack("<Q", (1 << 64) - 1), 1 << 40, "are refused"),
    ],
)
def test_a_length_that_cannot_be_true_is_refused_before_anything_is_read(
    prefix: bytes, file_bytes: int, words: str
) -> None:
    with pytest.raises(ArtifactError, match=words):
        header_length(prefix, file_bytes, "model.safetensors")
