"""Words that a user types after `trims run MODEL`, and the inputs that they become."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from trims_predictors.cli.run_inputs import RunInputs
from trims_predictors.tensors import to_array

from trims.core.errors import CallerError
from trims.manifests.serving import TensorType

if TYPE_CHECKING:
    from pathlib import Path

X = TensorType("x", "FP64", (-1,))
IDS = TensorType("ids", "INT64", (-1, -1))
TEXT = TensorType("text", "BYTES", (-1, 1))


def read(*given: str, types: tuple[TensorType, ...] = (X,)) -> dict[str, tuple[str, object]]:
    """Name -> data type and values."""
    return {each.name: (each.dtype, to_array(each).tolist()) for each in RunInputs("m").read(given, types)}


def test_a_request_of_the_protocol_is_taken_from_a_file_or_as_text(tmp_path: Path) -> None:
    request = json.dumps({"inputs": [{"name": "a", "datatype": "INT8", "shape": [2], "data": [1, 2]}]})
    path = tmp_path / "request.json"
    path.write_text(request)
    for given in (str(path), request):
        assert read(given) == {"a": ("INT8", [1, 2])}
    with pytest.raises(CallerError, match="not JSON"):
        read("{")


def test_numbers_get_the_type_that_the_model_takes() -> None:
    assert read("[1, 2]") == {"x": ("FP64", [1.0, 2.0])}
    assert read("ids=[[1, 2]]", types=(X, IDS)) == {"ids": ("INT64", [[1, 2]])}
    assert read("-3") == {"x": ("FP64", -3.0)}
    assert read("a=[1, 2]", "b=0.5", types=()) == {"a": ("INT64", [1, 2]), "b": ("FP32", 0.5)}


def test_numpys_files_are_one_tensor_or_several(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.array([1.0, 2.0]))
    np.savez(tmp_path / "two.npz", a=np.array([1], np.int8), b=np.array([True]))
    assert read(str(tmp_path / "one.npy")) == {"x": ("FP64", [1.0, 2.0])}
    assert read(f"y={tmp_path / 'one.npy'}", types=()) == {"y": ("FP64", [1.0, 2.0])}
    assert read(str(tmp_path / "two.npz")) == {"a": ("INT8", [1]), "b": ("BOOL", [True])}
    with pytest.raises(CallerError, match="has named inputs of its own"):
        read(f"a={tmp_path / 'two.npz'}")


def test_text_and_other_files_are_one_element_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"\xff\xd8")
    assert read("what is 1 / 2?", types=(TEXT,)) == {"text": ("BYTES", [[b"what is 1 / 2?"]])}
    assert read("12", types=(TEXT,)) == {"text": ("BYTES", [[b"12"]])}
    assert read(str(tmp_path / "cat.jpg"), types=(TEXT,)) == {"text": ("BYTES", [[b"\xff\xd8"]])}
    assert read("t=hello", types=()) == {"t": ("BYTES", [b"hello"])}


@pytest.mark.parametrize(
    ("given", "types", "message"),
    [
        (("absent.npy",), (X,), "there is no file 'absent.npy'"),
        (("x=absent.JPG",), (X,), "there is no file 'absent.JPG'"),
        (("hello",), (X,), r"'x' is FP64 of shape \[-1\]; write numbers, such as \[1, 2\]"),
        (("[1,",), (X,), "no JSON array of numbers"),
        (("[[1], [2, 3]]",), (X,), "no JSON array of numbers"),
        (('[1, "a"]',), (X,), "holds text; write numbers, or text alone"),
        (("[1, null]",), (X,), "holds values that are no numbers; write"),
        (("[1, 300]",), (TensorType("x", "UINT8", (-1,)),), "values that UINT8 cannot hold"),
        (("[1.5]",), (TensorType("x", "UINT8", (-1,)),), "write whole numbers, not"),
        (("1",), (X, IDS), r"has the inputs x \(FP64 \[-1\]\), ids .*; write name=value for each"),
        (("1",), (), "inputs of 'm' are not known before its first run.*write name=value"),
        (("[16777217]",), (TensorType("x", "FP32", (-1,)),), "is FP32, which does not hold 16777217 but 16777216"),
        (("[9007199254740993]",), (X,), "is FP64, which does not hold 9007199254740993"),
        (("[2]",), (TensorType("x", "BOOL", (-1,)),), "is BOOL, which does not hold 2"),
        (("x=[18446744073709551615, -1]",), (), "whole numbers that no type holds together"),
        (("x=1", "2"), (X, IDS), "'2' is one of 2 inputs and has no name"),
        (("text=a",), (TensorType("text", "BYTES", (3,)),), "has 3 elements; write them in JSON"),
        (("a\0.npy",), (X,), "there is no file"),
        (("/dev",), (TEXT,), "'/dev' is a folder; name a file"),
        (("t=/dev/null",), (), "'/dev/null' is no regular file; name a file"),
    ],
)
def test_what_cannot_be_an_input_is_named_with_what_to_write(
    given: tuple[str, ...], types: tuple[TensorType, ...], message: str
) -> None:
    with pytest.raises(CallerError, match=message):
        read(*given, types=types)


def test_a_file_of_numpys_that_is_broken_or_holds_objects_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.npy").write_bytes(b"nothing")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name in ("broken.npy", "objects.npy"):
        with pytest.raises(CallerError, match=f"{name}' cannot be read as numpy's"):
            read(str(tmp_path / name))


def typed(*given: str, dtypes: tuple[str, ...], types: tuple[TensorType, ...] = ()) -> dict[str, str]:
    """Name -> data type."""
    return {each.name: each.dtype for each in RunInputs("m", dtypes).read(given, types)}


def test_the_user_s_type_goes_before_that_of_the_model_and_one_of_all_inputs_last() -> None:
    assert typed("a=[1, 2]", "b=[3]", "t=9", dtypes=("FP32", "b=INT8", "t=BYTES")) == {
        "a": "FP32",
        "b": "INT8",
        "t": "BYTES",
    }
    assert typed("x=1,2,3", dtypes=("FP16",), types=(X,)) == {"x": "FP16"}


def test_numbers_may_stand_without_brackets() -> None:
    assert read("x=1,2,3") == {"x": ("FP64", [1.0, 2.0, 3.0])}


@pytest.mark.parametrize(
    ("dtypes", "given", "message"),
    [
        (("x=FLOAT",), "x=1", "'FLOAT' is no type; write one of BOOL, UINT8"),
        (("x=FP32", "x=FP64"), "x=1", "the type of x is stated twice"),
        (("y=FP32",), "x=1", "--dtype y=FP32 is for no input that is given as numbers or text"),
        (("FP32",), '{"inputs": []}', "--dtype FP32 is for no input"),
    ],
)
def test_a_type_that_says_nothing_is_refused_by_its_name(dtypes: tuple[str, ...], given: str, message: str) -> None:
    with pytest.raises(CallerError, match=message):
        typed(given, dtypes=dtypes)


def test_guessed_types_are_told_with_the_flag_that_states_them() -> None:
    inputs = RunInputs("m", ["b=FP64"])
    inputs.read(["a=[1]", "b=[1]", "x=[1]"], [X])
    assert inputs.guessed == {"a": "INT64"}
    assert "a as INT64" in inputs.format_guesses()
    assert "--dtype a=TYPE" in inputs.format_guesses()
