"""Every rule of the safetensors header, each with a sample that breaks it."""

# fault (damage): a header that lies -> `bad_artifact` before weights are read

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import ArtifactError
from trims.image.header import parse_header

GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def parse(header: Any, data_bytes: int = 8) -> Any:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return parse_header(text, 8 + len(text) + data_bytes, "model.safetensors")


def changed(**fields: Any) -> dict[str, Any]:
    return {"w": {**GOOD, **fields}}


def test_a_good_header_is_read() -> None:
    header = parse({"__metadata__": {"format": "pt"}, "w": GOOD})
    assert header.metadata == {"format": "pt"}
    assert header.layout.tensors["w"].shape == (2,)
    assert header.data_bytes == 8


def test_fields_and_tensors_may_come_in_any_order() -> None:
    turned = dict(reversed(GOOD.items()))
    header = parse({"b": {**turned, "data_offsets": [8, 16]}, "a": GOOD, "é": {**GOOD, "data_offsets": [16, 24]}}, 24)
    assert [(spec.name, spec.offset) for spec in header.layout] == [("b", 8), ("a", 0), ("é", 16)]


def test_a_header_without_tensors_is_read() -> None:
    assert len(parse({}, data_bytes=0).layout) == 0


@pytest.mark.parametrize(
    "text",
    [
        b'{"__metadata__": null, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "strides": {"of": [1, null]}}}',
        b'{"w": {"x": 1, "dtype": "F32", "shape": [2], "data_offsets": [0, 8], "x": 2}}',
    ],
    ids=["no metadata", "a field of another name", "such a field twice"],
)
def test_what_the_safetensors_library_passes_over_is_passed_over(text: bytes) -> None:
    safetensors = pytest.importorskip("safetensors")
    ((name, tensor),) = safetensors.deserialize(len(text).to_bytes(8, "little") + text + bytes(8))
    header = parse(text)
    assert [(each.name, each.dtype, list(each.shape)) for each in header.layout] == [
        (name, tensor["dtype"], tensor["shape"])
    ]
    assert header.metadata == {}


REFUSED: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{nonsense", "not JSON"),
    "not UTF-8": (b'{"\xff": 1}', "not JSON"),
    "UTF-16": (json.dumps(changed()).encode("utf-16"), "not JSON"),
    "an array": (b"[]", "not a JSON object"),
    "a tensor that is an array of pairs": ({"w": [[name, GOOD[name]] for name in GOOD]}, "must have dtype"),
    "a shape that is an object": (changed(shape={}), "impossible shape"),
    "offsets that are an object": (changed(data_offsets={"a": 0, "b": 8}), "impossible data_offsets"),
    "metadata with a key twice": (b'{"__metadata__": {"a": "", "a": ""}}', "names 'a' twice"),
    "NaN": (b'{"w": NaN}', "NaN is not JSON"),
    "Infinity": (b'{"w": -Infinity}', "not JSON"),
    "deep nesting": (b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON"),
    "a number of a million digits": (b'{"w":' + b"9" * 1_000_000 + b"}", "not JSON"),
    "a name twice": (b'{"w": {}, "w": {}}', "names 'w' twice"),
    "a field twice": (b'{"w": {"dtype": "F32", "dtype": "F32"}}', "names 'dtype' twice"),
    "a lone surrogate": (b'{"\\ud800": {"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', "not valid Unicode"),
    "metadata no map": ({"__metadata__": []}, "__metadata__"),
    "metadata with numbers": ({"__metadata__": {"epoch": 3}}, "__metadata__"),
    "a tensor that is no object": ({"w": 1}, "must have dtype, shape and data_offsets"),
    "a field missing": ({"w": {"dtype": "F32", "shape": [2]}}, "must have dtype"),
    "a field too many and one missing": ({"w": {"dtype": "F32", "shape": [2], "strides": [1]}}, "must have dtype"),
    "an unknown dtype": (changed(dtype="I4"), "unsupported dtype 'I4'"),
    "elements of 4 bits": (changed(dtype="F4"), "the dtype F4, whose elements share bytes"),
    "elements of 6 bits": (changed(dtype="F6_E2M3"), "the dtype F6_E2M3, whose elements share bytes"),
    "other elements of 6 bits": (changed(dtype="F6_E3M2"), "the dtype F6_E3M2, whose elements share bytes"),
    "a dtype that is no string": (changed(dtype=["F32"]), "unsupported dtype"),
    "a shape that is no list": (changed(shape=2), "impossible shape"),
    "a negative extent": (changed(shape=[-2]), "impossible shape"),
    "a bool as extent": (changed(shape=[True, 2]), "impossible shape"),
    "a float as extent": (changed(shape=[2.0]), "impossible shape"),
    "an extent beyond 64 bits": (changed(shape=[1 << 64, 2]), "impossible shape"),
    "65 dimensions": (changed(shape=[1] * 65), "impossible shape"),
    "one offset": (changed(data_offsets=[0]), "impossible data_offsets"),
    "three offsets": (changed(data_offsets=[0, 8, 8]), "impossible data_offsets"),
    "a negative offset": (changed(data_offsets=[-8, 0]), "impossible data_offsets"),
    "a bool as offset": (changed(data_offsets=[False, 8]), "impossible data_offsets"),
    "offsets in reverse": (changed(data_offsets=[8, 0]), "its data_offsets give -8"),
    "offsets that do not fit the shape": (changed(data_offsets=[0, 4]), "takes 8 bytes"),
    "a shape whose product overflows": (changed(shape=[1 << 40, 1 << 40]), "data_offsets give 8"),
    "an overlap": ({"a": GOOD, "b": {**GOOD, "data_offsets": [4, 12]}}, "'b' at 4 overlaps"),
    "the same bytes twice": ({"a": GOOD, "b": GOOD}, "overlaps"),
    "a hole": (changed(data_offsets=[4, 12]), "leaves a hole before it"),
    "bytes past the end": ({"a": GOOD, "b": {**GOOD, "data_offsets": [8, 16]}}, "take 16 bytes, the data block has 8"),
    "bytes left over": (changed(shape=[1], data_offsets=[0, 4]), "take 4 bytes, the data block has 8"),
}


@pytest.mark.parametrize(("header", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_header_is_refused_that_has(header: Any, words: str) -> None:
    with pytest.raises(ArtifactError, match=words) as caught:
        parse(header)
    assert str(caught.value).startswith("model.safetensors: ")
    assert len(str(caught.value)) < 1000


def test_a_repeated_name_at_the_end_of_a_huge_header_is_found_in_linear_time() -> None:
    names = ",".join(f'"{number}":0' for number in range(300_000))
    with pytest.raises(ArtifactError, match="names '299999' twice"):
        parse(f'{{{names},"299999":0}}'.encode())


@given(st.binary(max_size=300))
def test_no_bytes_whatever_do_more_than_raise(text: bytes) -> None:
    try:
        parse_header(text, 8 + len(text), "x")
    except ArtifactError:
        return
    assert json.loads(text) in ({}, {"__metadata__": json.loads(text).get("__metadata__")})
