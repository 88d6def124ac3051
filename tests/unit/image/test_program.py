"""The program of an image: it comes back as it was, and bytes that are none are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import ImageError
from trims.image.program import Program

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.text(max_size=20), st.dictionaries(st.text(max_size=5), VALUES, max_size=4), st.binary(max_size=50))
def test_a_program_comes_back_as_it_was(kind: str, attributes: dict[str, object], body: bytes) -> None:
    program = Program(kind, attributes, body)
    assert Program.decode(program.encode()) == program


def test_the_order_of_attributes_does_not_change_the_bytes() -> None:
    one, other = Program("k", {"a": 1, "b": 2}), Program("k", {"b": 2, "a": 1})
    assert one.encode() == other.encode()


@pytest.mark.parametrize("damage", [b"", b"\0\0", b"\xff\xff\xff\xff", b"\4\0\0\0nope", b"\2\0\0\0[]", b"\2\0\0\0{}"])
def test_a_program_that_is_none_is_refused(damage: bytes) -> None:
    with pytest.raises(ImageError, match="program"):
        Program.decode(damage)


@pytest.mark.parametrize("claimed", [13, (16 << 20) + 1])
def test_a_head_that_claims_more_than_there_is_or_than_is_read_is_refused(claimed: int) -> None:
    data = struct.pack("<I", claimed) + bytes(12 if claimed < 100 else claimed)
    with pytest.raises(ImageError, match=f"the program's head claims {claimed} bytes of {len(data)}"):
        Program.decode(data)
