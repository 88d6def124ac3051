"""Mappings as structs: what is wrong with one is named by its place, with the value and what to write."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from msgspec import Struct

from trims.core.errors import ManifestError
from trims.manifests.fields import CALL, about, check_inside, matching, one_of, parse, written
from trims.manifests.packages import parse_package
from trims.manifests.serving import TensorType
from trims.manifests.tensor_fields import parse_inputs, parse_outputs


def _halved(raw: Any, where: str) -> int:
    if raw == "odd":
        raise ValueError("is odd; write an even number")
    if raw == "wrong":
        raise ManifestError(f"{where} is wrong")
    return int(raw) // 2


class Inner(Struct, frozen=True, forbid_unknown_fields=True):
    size: Annotated[int, about("", ge=1, le=9)] | None = None
    half: Annotated[int, written(_halved, {"type": "integer"})] = 0
    flag: bool = False


class Outer(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, matching(r"^[a-z]+\Z", "small letters")]
    kind: Annotated[str, one_of(("a", "b"))] = "a"
    inner: Inner | None = None
    each: tuple[Inner, ...] = ()
    more: dict[str, Any] = {}
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind == "b" and self.text:
            raise ValueError("has both 'b' and 'text'; leave one out")


def test_a_mapping_becomes_a_struct_and_null_stands_for_what_is_left_out() -> None:
    given = {"name": "x", "kind": None, "inner": {"size": 3, "half": 8}, "each": [{"size": None}], "more": {"a": None}}
    assert parse(Outer, given, "m") == Outer("x", "a", Inner(3, 4), (Inner(),), {"a": None})


_UNKNOWN = "m: inner: unknown field 'sice'; did you mean 'size'? known are flag, half, size"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "X"}, "m: name: is 'X'; write small letters"),
        ({"name": "x\n"}, r"m: name: is 'x\n'; write small letters"),
        ({}, "m: the field 'name' is missing; write small letters"),
        ({"name": "x", "kind": "c"}, "m: kind: is 'c'; write one of a, b"),
        ({"name": "x", "text": 1}, "m: text: is 1; write text, in quotes"),
        ({"name": "x", "inner": 1}, "m: inner: is 1; write a mapping with text keys"),
        ({"name": "x", "inner": {"size": True}}, "m: inner.size: is True; write a whole number from 1 to 9"),
        ({"name": "x", "inner": {"flag": None}}, "m: inner.flag: is None; write true or false"),
        ({"name": "x", "inner": {"half": "odd"}}, "m: inner.half: is odd; write an even number"),
        ({"name": "x", "inner": {"half": "wrong"}}, "m: inner.half is wrong"),
        ({"name": "x", "each": {}}, "m: each: is {}; write a list"),
        ({"name": "x", "each": [{}, {"size": 10}]}, "m: each[1].size: is 10; write a whole number from 1 to 9"),
        ({"name": "x", "more": {1: 2}}, "m: more: is {1: 2}; write a mapping with text keys"),
        ({"name": "x", "kind": "b", "text": "t"}, "m: has both 'b' and 'text'; leave one out"),
        ({"name": "x", "inner": {"sice": 1}}, _UNKNOWN),
        ({"name": "x", 1: 2}, "m: unknown field 1; known are each, inner, kind, more, name, text"),
        ([], "m: is []; write a mapping with text keys"),
    ],
)  # fmt: skip
def test_the_error_names_place_value_and_remedy(given: Any, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(Outer, given, "m")
    assert str(caught.value) == message.replace(r"\n", "\\n")


def test_a_place_inside_a_part_is_told_from_the_part() -> None:
    with pytest.raises(ManifestError, match=r"m: steps\[0\]\.size: is 0"):
        parse(Inner, {"size": 0}, "m: steps[0]")


def test_a_path_stays_in_its_folder() -> None:
    assert check_inside("a/b") == "a/b"
    for wrong in ("../a", "a/../../b", "/a", "", "a\\..\\..", "a\0"):
        with pytest.raises(ValueError, match="leaves its folder"):
            check_inside(wrong)


def test_a_call_is_a_module_and_a_name() -> None:
    import re

    for call in ("a:b", "a.b_c:D"):
        assert re.match(CALL, call)
        assert not re.match(CALL, call.replace(":", "."))


def test_a_file_in_a_package_is_its_import_name_and_a_path_inside() -> None:
    assert parse_package({"name": "a.b", "path": "c/d"}, "here") == ("a.b", "c/d")


@pytest.mark.parametrize(
    "wrong",
    [{"name": "a"}, {"name": "1", "path": "c"}, {"name": "a", "path": "../c"}, {"name": "a", "path": "/c"}, "a"],
)
def test_a_file_outside_or_without_a_package_is_refused(wrong: Any) -> None:
    with pytest.raises(ManifestError, match="here"):
        parse_package(wrong, "here")


X = {"name": "x", "dtype": "FP32", "shape": [-1, 3, 4]}


def test_inputs_have_layouts_and_outputs_labels_as_well() -> None:
    (found,) = parse_inputs([{**X, "layout": "NCHW"}], "m: inputs")
    assert (found, found.layout) == (TensorType("x", "FP32", (-1, 3, 4)), "NCHW")
    (found,) = parse_outputs([{**X, "labels": "l.txt"}], "m: outputs")
    assert found.labels == "l.txt"
    with pytest.raises(ManifestError, match=r"m: inputs\[0\]: unknown field 'labels'"):
        parse_inputs([{**X, "labels": "l.txt"}], "m: inputs")


def test_a_layout_is_of_an_image_and_a_name_stands_for_one_tensor() -> None:
    with pytest.raises(ManifestError, match="3 or 4 lengths, not 1"):
        parse_inputs([{**X, "shape": [1], "layout": "NCHW"}], "m: inputs")
    with pytest.raises(ManifestError, match="'x' is there twice"):
        parse_inputs([X, X], "m: inputs")
