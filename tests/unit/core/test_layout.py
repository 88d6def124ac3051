"""Layouts: which are admitted, and the errors of the rest."""

from __future__ import annotations

import pytest

from trims.core.errors import ImageError
from trims.core.layout import DTYPE_BYTES, DTYPES, Layout, TensorSpec, element_count


def spec(name: str = "w", dtype: str = "F32", shape: tuple[int, ...] = (2, 3), offset: int = 0) -> TensorSpec:
    return TensorSpec(name, dtype, shape, offset)


def test_a_scalar_has_one_element_and_an_empty_tensor_none() -> None:
    assert element_count(()) == 1
    assert element_count((3, 0, 5)) == 0
    assert spec(shape=()).nbytes == 4
    assert spec(shape=(0,)).end == 0


def test_the_numbers_of_dtypes_never_change_as_they_are_stored_in_images() -> None:
    assert DTYPES == (
        "BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "BF16", "F32", "F64",
        "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64",
    )  # fmt: skip
    assert [DTYPE_BYTES[name] for name in DTYPES] == [1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 1, 1, 1, 8]


def test_a_name_that_comes_twice_is_refused() -> None:
    with pytest.raises(ImageError, match="'w' is described twice"):
        Layout.of([spec(), spec(offset=64)])


def test_tied_tensors_count_once_also_when_one_is_smaller() -> None:
    layout = Layout.of([spec("a"), spec("b"), spec("part", shape=(2,)), spec("c", offset=64)])
    assert layout.nbytes == 48
    assert len(layout) == 4
    assert [each.name for each in layout] == ["a", "b", "part", "c"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (spec(name="__metadata__"), "__metadata__"),
        (spec(dtype="F7"), "unknown dtype 'F7'"),
        (spec(shape=(-1,)), "impossible shape"),
        (spec(shape=(1,) * 65), "impossible shape"),
        (spec(offset=-4), "claims bytes -4"),
        (spec(offset=1000), "claims bytes 1000 to 1024 of a data block of 1023"),
        (spec(offset=2), "unaligned for F32"),
    ],
)
def test_a_tensor_that_cannot_be_is_named(wrong: TensorSpec, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        Layout.of([wrong]).validate(1023)


def test_alignment_is_asked_for_or_not() -> None:
    unaligned = Layout.of([spec(offset=2)])
    unaligned.validate(1023, aligned=False)
    with pytest.raises(ImageError, match="unaligned for F32"):
        unaligned.validate(1023)
