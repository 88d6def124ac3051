"""The checksum of an image: its definition, by plain integers; what it finds; and sums of parts."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import CallerError
from trims.memory.row_sums import COLUMNS, ROW_BYTES, change, checksum, multiplier, part, weights, whole

#: Lengths round the ends of a row, of one product and of one chunk.
LENGTHS = [0, 1, 7, 1023, 1024, 1025, 2047, 3000, 32 * 1024 + 1, (256 << 10) - 1, 256 << 10, (256 << 10) + 1025]
some_bytes = st.binary(min_size=1, max_size=4 * ROW_BYTES)


def by_definition(data: bytes) -> int:
    """The checksum as the module's text says it, one byte after the other."""
    total = multiplier((1 << 63) + len(data))
    for at, byte in enumerate(data):
        row, column = divmod(at, ROW_BYTES)
        signed = byte - 256 if byte > 127 else byte
        total += sum(signed * w * multiplier(COLUMNS * row + j) for j, w in enumerate(weights()[column]))
    return total % (1 << 64)


def noise(nbytes: int) -> bytes:
    return random.Random(nbytes).randbytes(nbytes)


@pytest.mark.parametrize("nbytes", [each for each in LENGTHS if each < 40_000])
def test_the_checksum_is_the_sum_that_its_definition_says(nbytes: int) -> None:
    assert checksum(noise(nbytes)) == by_definition(noise(nbytes))


@pytest.mark.parametrize("value", [0x00, 0x7F, 0x80, 0xFF])
def test_sums_of_extreme_bytes_are_exact(value: int) -> None:
    assert checksum(bytes([value]) * 3000) == by_definition(bytes([value]) * 3000)
    most = ROW_BYTES * 128 * max(abs(each) for row in weights() for each in row)
    assert most < 1 << 24, "float32 has all integers up to there, and int32 more"


def test_the_definition_does_not_change() -> None:
    """Images that were made by other versions have these."""
    assert checksum(b"") == 0x481EC0A212A9F3DB
    assert checksum(bytes(range(256)) * 9 + b"x") == 0x84699A49ACD3023F


def test_rows_of_the_matrix_differ_and_have_odd_sums() -> None:
    assert len(set(weights())) == ROW_BYTES
    assert all(sum(row) % 2 for row in weights())
    assert all(-127 <= each <= 127 for row in weights() for each in row)
    assert multiplier(0) % 2 == multiplier(12345) % 2 == 1


@pytest.mark.parametrize("nbytes", LENGTHS)
def test_a_product_of_bytes_as_a_device_makes_it_gives_the_same(nbytes: int) -> None:
    """Whole rows of signed bytes times int8 weights, summed up in int32."""
    padded = noise(nbytes) + bytes(-nbytes % ROW_BYTES)
    rows = np.frombuffer(padded, np.int8).reshape(-1, ROW_BYTES).astype(np.int32)
    products = rows @ np.array(weights(), np.int8).astype(np.int32)
    total = sum(int(each) * multiplier(at) for at, each in enumerate(products.reshape(-1)))
    assert whole(total, nbytes) == checksum(noise(nbytes))


@given(some_bytes, st.data())
def test_one_changed_byte_is_found(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data) - 1))
    other = draw.draw(st.integers(0, 255).filter(lambda value: value != data[at]))
    assert checksum(data[:at] + bytes([other]) + data[at + 1 :]) != checksum(data)


@given(some_bytes, st.data())
def test_exchanged_bytes_are_found(data: bytes, draw: st.DataObject) -> None:
    one, other = (draw.draw(st.integers(0, len(data) - 1)) for _ in range(2))
    changed = bytearray(data)
    changed[one], changed[other] = changed[other], changed[one]
    assert (checksum(changed) == checksum(data)) is (data[one] == data[other])


@given(some_bytes, st.integers(1, 4096))
def test_moved_bytes_are_found(data: bytes, by: int) -> None:
    moved = data[by % len(data) :] + data[: by % len(data)]
    assert (checksum(moved) == checksum(data)) is (moved == data)


@given(some_bytes, st.integers(1, 4096))
def test_a_wrong_length_is_found(data: bytes, by: int) -> None:
    assert checksum(data[: max(0, len(data) - by)]) != checksum(data)
    assert checksum(data + bytes(by)) != checksum(data), "zeros count, too"


def test_exchanged_rows_are_found() -> None:
    data = noise(8 * ROW_BYTES)
    rows = [data[at : at + ROW_BYTES] for at in range(0, len(data), ROW_BYTES)]
    sums = {checksum(b"".join([*rows[turn:], *rows[:turn]])) for turn in range(8)}
    assert len(sums) == 8


@given(st.integers(0, 6 * ROW_BYTES), st.data())
def test_parts_add_up_in_any_order(nbytes: int, draw: st.DataObject) -> None:
    data = noise(nbytes)
    cut = draw.draw(st.integers(0, nbytes // ROW_BYTES)) * ROW_BYTES
    parts = [part(memoryview(data)[cut:], cut), part(memoryview(data)[:cut], 0)]
    assert whole(sum(parts), nbytes) == checksum(data)


def test_a_part_that_begins_within_a_row_is_refused() -> None:
    with pytest.raises(CallerError, match="begins at a multiple of 1024 bytes, not at 7"):
        part(b"x", 7)


@given(some_bytes, st.data())
def test_a_change_of_few_bytes_is_added_without_reading_the_others(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data)))
    after = draw.draw(st.binary(max_size=len(data) - at))
    changed = data[:at] + after + data[at + len(after) :]
    added = change(data[at : at + len(after)], after, at)
    assert whole(part(data, 0) + added, len(data)) == checksum(changed)
