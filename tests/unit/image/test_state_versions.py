"""Versions of modules travel as one string, and come back as they were."""

from __future__ import annotations

from typing import Any

import pytest

from trims.image.state_versions import decode_versions, encode_versions, renamed_versions


@pytest.mark.parametrize(
    "metadata",
    [
        {"": {"version": 1}},
        {"": {"version": 1}, "norm": {"version": 2}, "norm.more": {"version": 2}},
        {"a": {"version": 1, "spectral_norm": {"weight.version": 1}}, "b": {}},
        {'"torch.state_dict":"': {"version": None}},
    ],
)
def test_versions_come_back_as_they_were(metadata: dict[str, Any]) -> None:
    assert decode_versions(encode_versions(metadata)) == metadata


def test_modules_with_the_same_version_do_not_share_what_a_loader_writes() -> None:
    found = decode_versions(encode_versions({"a": {"version": 1}, "b": {"version": 1}}))
    found["a"]["assign_to_params_buffers"] = True
    assert found["b"] == {"version": 1}


def test_equal_versions_are_written_once() -> None:
    text = encode_versions({f"layer.{number}": {"version": 1} for number in range(100)})
    assert text.count("version") == 1


@pytest.mark.parametrize("metadata", [None, {}])
def test_no_versions_are_an_empty_string(metadata: Any) -> None:
    assert encode_versions(metadata) == ""


@pytest.mark.parametrize("metadata", [{"": {"v": (1,)}}, {"": {"v": b"1"}}, {1: {}}, [1], {"": 3}, {"": {1: 2}}])
def test_what_json_cannot_hold_is_a_value_error(metadata: Any) -> None:
    with pytest.raises(ValueError):
        encode_versions(metadata)


@pytest.mark.parametrize("text", ["", "3", "[3]", '[[{"v":1}]]', "[[1,[2]]]"])
def test_a_string_that_is_none_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        decode_versions(text)


def test_versions_follow_tensors_to_other_names() -> None:
    metadata = {"model": {"version": 1}, "model.norm": {"version": 2}}
    names = {"model.norm.weight": "norm.weight", "model.norm.old": "norm.new", "model.bias": "bias"}
    assert renamed_versions(metadata, names) == {**metadata, "norm": {"version": 2}, "": {"version": 1}}
