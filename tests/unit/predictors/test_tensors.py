"""Tensors of the inference protocol and numpy arrays, both ways; a request's claims are held against its bytes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from trims_predictors.tensors import (
    Tensor,
    check_against,
    check_name,
    dtype_name,
    from_array,
    join_bytes,
    nbytes_of,
    numpy_dtype,
    split_bytes,
    to_array,
)

from trims.core.errors import CallerError
from trims.manifests.serving import ITEM_BYTES, TensorType


@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES.keys() - {"BYTES"}))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)])
def test_an_array_of_every_type_comes_back_as_it_was(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(numpy_dtype(dtype))
    tensor = from_array("x", array)
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == (dtype, shape, nbytes_of("x", dtype, shape))
    tensor.check()
    back = to_array(tensor)
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_texts_and_bytes_travel_with_their_lengths() -> None:
    tensor = from_array("x", np.array([["a", "é"], ["", "long" * 9]]))
    assert tensor.dtype == "BYTES"
    assert to_array(tensor).tolist() == [[b"a", "é".encode()], [b"", b"long" * 9]]


def test_what_is_not_row_major_or_little_endian_is_copied_so() -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    assert bytes(from_array("x", array).data) == np.array([[0, 3], [1, 4], [2, 5]], "<f4").tobytes()


def test_a_row_major_array_is_not_copied() -> None:
    array = np.zeros(4, "<f4")
    tensor = from_array("x", array)
    array[:] = 1
    assert to_array(tensor).tolist() == [1, 1, 1, 1]


def test_bfloat16_is_that_of_ml_dtypes() -> None:
    assert dtype_name("x", np.dtype(ml_dtypes.bfloat16)) == "BF16"
    with pytest.raises(CallerError, match="complex64, which the inference protocol lacks"):
        dtype_name("x", np.dtype("c8"))


@pytest.mark.parametrize(
    ("dtype", "shape", "message"),
    [
        ("FLOAT", (1,), "data type 'FLOAT'"),
        ("FP32", (-1,), "lengths are 0 and more"),
        ("FP32", (1,) * 33, "33 dimensions"),
        ("FP32", (1 << 30, 1 << 30), "more elements than memory"),
        ("FP32", (0, 1 << 62), "more elements than memory"),
    ],
)
def test_a_type_or_shape_that_cannot_be_is_refused(dtype: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(CallerError, match=message):
        nbytes_of("x", dtype, shape)


def test_a_tensor_with_too_many_or_too_few_bytes_is_refused() -> None:
    with pytest.raises(CallerError, match=r"brings 7 bytes; FP32 of shape \[2\] has 8"):
        Tensor("x", "FP32", (2,), b"1234567").check()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\1\0\0", "in the middle of a length"),
        (b"\5\0\0\0ab", "an element of 5 bytes; 2 are left"),
        (join_bytes([b"a", b"b", b"c"]), "has 3 elements; its shape says 2"),
        (b"", "has 0 elements"),
    ],
)
def test_broken_bytes_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(CallerError, match=message):
        list(split_bytes("x", data, 2))


def test_a_request_must_bring_what_the_model_takes_and_no_more() -> None:
    expected = [TensorType("x", "FP32", (-1, 2)), TensorType("y", "INT64", ())]
    x, y = from_array("x", np.zeros((3, 2), "f4")), from_array("y", np.array(1))
    check_against([y, x], expected, "m")
    check_against([x], [], "m")
    for wrong, message in (
        ([x], "needs the input 'y'"),
        ([x, y, from_array("z", np.zeros(1))], "has no input 'z'"),
        ([x, y, x], "brings the input 'x' twice"),
        ([from_array("x", np.zeros((3, 3), "f4")), y], r"FP32 of shape \[-1, 2\] \(-1: any\); the request brings FP32"),
        ([from_array("x", np.zeros((3, 2))), y], "brings FP64"),
    ):
        with pytest.raises(CallerError, match=message):
            check_against(wrong, expected, "m")


@pytest.mark.parametrize("expected", [[], [TensorType("x", "FP32", (-1,))]], ids=["nothing is stated", "stated"])
def test_names_of_a_request_are_texts_and_differ_whatever_the_model_takes(expected: list[TensorType]) -> None:
    x = from_array("x", np.zeros(3, "f4"))
    with pytest.raises(CallerError, match="brings the input 'x' twice"):
        check_against([x, x], expected, "m")
    for name in ("", "\ud800"):
        with pytest.raises(CallerError, match="names are texts that are not empty"):
            check_against([Tensor(name, "FP32", (3,), x.data)], expected, "m")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([object()], object), "'x' has an element of the type object; give bytes or text"),
        (np.array([b"a", None], object), "an element of the type NoneType"),
        (np.array(["\ud800"], object), r"the text '\\ud800', which has surrogates"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), r"'x' is a masked array, .*call its `\.filled\(\)`"),
        (np.zeros(2, [("a", "f4")]), "which the inference protocol lacks"),
    ],
)
def test_an_array_that_can_be_no_tensor_is_refused(array: Any, message: str) -> None:
    with pytest.raises(CallerError, match=message):
        from_array("x", array)


@pytest.mark.parametrize("name", ["", "\ud800", 1, None, b"x"])
def test_a_name_that_no_answer_can_have_is_refused(name: Any) -> None:
    with pytest.raises(CallerError, match="names are texts"):
        check_name(name)
    check_name("é")


def test_truths_are_zero_or_one() -> None:
    Tensor("x", "BOOL", (3,), b"\0\1\1").check()
    Tensor("x", "BOOL", (0,), b"").check()
    with pytest.raises(CallerError, match="'x' is BOOL and has bytes other than 0 and 1"):
        Tensor("x", "BOOL", (3,), b"\0\1\2").check()


def test_a_tensor_that_another_process_has_checked_is_not_checked_again() -> None:
    Tensor("x", "BYTES", (3,), b"", checked=True).check()
    with pytest.raises(CallerError):
        Tensor("x", "BYTES", (3,), b"").check()
