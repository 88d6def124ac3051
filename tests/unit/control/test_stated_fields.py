"""Fields stated beside an artifact: they go into its manifest, and are checked with it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from trims.control.stated_fields import FLAGS, artifact_options, by_flag, refuse_fields, with_fields
from trims.core.errors import CallerError, ManifestError, ModelExistsError
from trims.manifests.manifest import parse_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

RAW: dict[str, Any] = {"name": "m", "artifact": {"path": "/a/m.onnx"}}
FOLDER: dict[str, Any] = {
    "name": "m", "framework": {"name": "transformers"}, "artifact": {"path": "/a", "options": {"task": "fill-mask"}},
}  # fmt: skip
FUNCTION: dict[str, Any] = {
    "name": "m", "artifact": {"model": "x"}, "predictor": {"handler": "/f.py:h", "options": {"as": "torch"}},
}  # fmt: skip


def refused(order: Callable[[], object], fields: dict[str, Any]) -> tuple[CallerError, CallerError]:
    """The error as Python gets it, and as `trims add` reports it."""
    with pytest.raises(CallerError) as caught:
        order()
    assert "--" not in str(caught.value)
    return caught.value, by_flag(caught.value, fields)


def nested(path: tuple[str, ...], value: object) -> dict[str, Any]:
    return {path[0]: nested(path[1:], value) if path[1:] else value}


def test_fields_are_merged_into_the_parts_of_a_manifest() -> None:
    fields = {"version": "2", "framework": {"version": ">=5"}, "predictor": {"deadline_s": 3, "options": {"top_k": 1}}}
    assert with_fields(FOLDER, fields) == {
        **FOLDER, "version": "2", "framework": {"name": "transformers", "version": ">=5"},
        "predictor": {"deadline_s": 3, "options": {"top_k": 1}},
    }  # fmt: skip
    assert with_fields(RAW, {}) == RAW


@pytest.mark.parametrize("path", FLAGS)
def test_every_flag_names_a_field_of_manifests(path: tuple[str, ...]) -> None:
    known = parse_manifest(RAW)
    for name in path[:2]:
        assert hasattr(known, name)
        known = getattr(known, name)


@pytest.mark.parametrize("path", FLAGS)
def test_a_field_beside_a_manifest_is_refused_by_its_flag(path: tuple[str, ...]) -> None:
    fields = nested(path, {"a": 1} if path[-1] == "options" else 1)
    error, told = refused(lambda: refuse_fields(fields, "m.yaml"), fields)
    assert re.match(rf"{'.'.join(path)}.* is for artifacts and functions; m.yaml is a manifest", str(error))
    assert re.match(rf"{FLAGS[path]}.* is for artifacts and functions; m.yaml is a manifest", str(told))
    refuse_fields({}, "m.yaml")


@pytest.mark.parametrize(
    ("raw", "path", "value", "message"),
    [
        (RAW, ("predictor", "deadline_s"), "soon", "--deadline: m: predictor.deadline_s: is 'soon'; write a number"),
        (RAW, ("predictor", "instances"), 0, "--instances: m: predictor.instances: is 0; write a whole number from 1"),
        (RAW, ("predictor", "threads"), 1.5, "--threads: m: predictor.threads: is 1.5"),
        (RAW, ("residency", "place"), "moon", "--place: m: residency.place: 'moon' is not a place"),
        (RAW, ("version",), "a b", "--version: m: version: is 'a b'"),
        (RAW, ("version",), 1.1, "--version: .*'version' must be text"),
        (RAW, ("predictor", "max_batch"), 1, "predictor.max_batch: .*did you mean 'max_batch_size'"),
        (FUNCTION, ("residency", "place"), "cpu", "--place: m: has 'residency', which the model 'x' states"),
        (FUNCTION, ("predictor", "max_batch_size"), 2, "--max-batch-size: .*is for tensors"),
        (FUNCTION, ("artifact", "options"), {"prepack": 1}, "--artifact-option prepack: .*'options'"),
    ],
)
def test_a_value_that_a_field_cannot_have_is_the_manifests_error_with_the_flag(
    raw: dict[str, Any], path: tuple[str, ...], value: object, message: str
) -> None:
    fields = nested(path, value)
    error, told = refused(lambda: with_fields(raw, fields), fields)
    assert (type(error), type(told)) == (ManifestError, ManifestError)
    assert re.match(message, str(told))


@pytest.mark.parametrize(
    ("raw", "fields", "message"),
    [
        (FUNCTION, {"predictor": {"options": {"as": "mxnet"}}}, "--option as is 'torch' already"),
        (RAW, {"name": "other"}, "--name is 'm' already"),
        (RAW, {"artifact": "other"}, "artifact is 'other'; state a mapping"),
        (RAW, {"predictor": {"options": {"truncation": True}}}, "--truncate is for folders of Hugging Face"),
        (
            FUNCTION,
            {"predictor": {"options": {"truncation": True}}},
            "--truncate is for folders of Hugging Face models",
        ),
        (RAW, {"predictor": {"options": {"top_k": 1}}}, "--option top_k is for folders of Hugging Face models"),
    ],
)
def test_a_field_that_says_another_thing_or_nothing_is_refused(
    raw: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    _, told = refused(lambda: with_fields(raw, fields), fields)
    assert re.match(message, str(told))


def test_an_error_that_names_no_field_is_left_as_it_is() -> None:
    for error in (CallerError("versions is 1"), ManifestError("m: framework.name: is 1"), ModelExistsError("name is")):
        assert by_flag(error, {"version": "2", "predictor": {"hot": 1}}) is error


def test_options_are_taken_where_a_predictor_may_know_them() -> None:
    options = {"predictor": {"options": {"top_k": 1}}}
    address = {"name": "m", "artifact": {"uri": "hf://org/m"}}
    own = {**RAW, "predictor": {"call": "mine:Own"}}
    assert [with_fields(raw, options)["predictor"]["options"] for raw in (FOLDER, address, own)] == [{"top_k": 1}] * 3
    assert artifact_options({"artifact": {"options": {"prepack": 1}}}) == {"prepack": 1}
    assert artifact_options({"artifact": 1}) == artifact_options({}) == {}
