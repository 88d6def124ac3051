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
    find_tensor,
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
        ((0, 0, 0, HEADER.size, 0, 0, HEADER.size - 1, 0), "which its own counts contradict"),
        ((0, 0, 0, HEADER.size, 60, 5, HEADER.size, 0), "program lies outside"),
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
    for spec in layout:
        assert find_tensor(data + b"weights", spec.name) in (spec, None)
    assert find_tensor(data, "no such tensor") is None
    header = decode_header(data)
    assert (header.tensors, header.index_bytes, header.data_bytes) == (len(described), len(data), 1 << 50)
    assert (header.program_offset, header.program_bytes) == (program_offset, program_bytes)


def test_a_name_that_is_not_unicode_is_refused_by_name() -> None:
    with pytest.raises(ImageError, match=r"tensor name '\\ud800' is not valid Unicode"):
        index_size(Layout.of([TensorSpec("\ud800", "U8", (1,), 0)]))


def index_of(*names: str) -> bytes:
    layout = Layout({str(at): TensorSpec(name, "F32", (2, at), 64 * at) for at, name in enumerate(names)})
    return encode_index(layout, program_offset=0, program_bytes=0, data_bytes=1 << 20)


def test_one_tensor_is_found_among_names_that_contain_its_own() -> None:
    names = ["layer.10", "layer.1", "a.layer.1", "er.1", "layer.1é"]
    found = [find_tensor(index_of(*names), name) for name in names]
    assert [None if spec is None else (spec.name, spec.shape) for spec in found] == [
        (name, (2, at)) for at, name in enumerate(names)
    ]
    assert [find_tensor(index_of(*names), name) for name in ("layer", "1", "\ud800", "")] == [None] * 4


def test_a_name_that_occurs_in_very_many_is_left_to_the_whole_table() -> None:
    names = [f"w{number}" for number in range(1000)]
    assert find_tensor(index_of(*names, "w"), "w") is None
    assert decode_index(index_of(*names, "w")).tensors["w"].shape == (2, 1000)


def test_a_tensor_that_lies_outside_is_refused_when_it_is_found_alone() -> None:
    data = bytearray(index_of("a", "b"))
    struct.pack_into("<Q", data, HEADER.size + RECORD.size + 8, 1 << 40)
    assert find_tensor(data, "a") == TensorSpec("a", "F32", (2, 0), 0)
    with pytest.raises(ImageError, match="tensor 'b' claims bytes"):
        find_tensor(data, "b")
    with pytest.raises(ImageError, match="of a block of"):
        find_tensor(bytes(data[:-1]), "a")


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
