"""Which of a checkpoint's values are the weights."""

# fault (damage): more than weights in a checkpoint; one shard of several -> `bad_artifact` with the keys or the index
# to add

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trims.core.errors import ArtifactError
from trims.formats.base import Artifact
from trims.formats.torch.state import StateDict, builder_of, key_of, metadata_of, select, state_dict, written
from trims.image.program import EXECUTABLE_KINDS
from trims.image.state_versions import STATE_VERSIONS, decode_versions

PATH = Path("m.pt")


def is_tensor(value: Any) -> bool:
    return isinstance(value, bytes)


@pytest.mark.parametrize(
    ("loaded", "tensors", "ignored"),
    [
        ({"w": b"1", "b": b"2"}, {"w": b"1", "b": b"2"}, []),
        ({"w": b"1", "epoch": 3, 7: "x"}, {"w": b"1"}, ["epoch", "7"]),
        ({"state_dict": {"w": b"1"}, "lr": 0.1}, {"w": b"1"}, ["lr"]),
        ({"model": {"w": b"1", "step": 2}, "optimizer": {}}, {"w": b"1"}, ["optimizer", "step"]),
        ({"model": {"epochs": 1}, "w": b"1"}, {"w": b"1"}, ["model"]),
        ({}, {}, []),
        ({"state_dict": {"w": b"1"}, "cuda_rng_state_all": [b"2"]}, {"w": b"1"}, ["cuda_rng_state_all"]),
        ({"state_dict": {"w": b"1"}, "optimizer_G": {"w": b"2"}}, {"w": b"1"}, ["optimizer_G"]),
        ({"state_dict": {"w": b"1"}, "my_optim": {"state": {0: {"m": b"2"}}}}, {"w": b"1"}, ["my_optim"]),
    ],
)
def test_tensors_and_what_is_left_out(loaded: Any, tensors: dict[str, Any], ignored: list[str]) -> None:
    assert state_dict(loaded, PATH, is_tensor) == (tensors, ignored)


@pytest.mark.parametrize("loaded", [[b"1"], b"1", {"epoch": 1}, {"model": {"epoch": 1}}, None])
def test_what_has_no_weights_is_refused(loaded: Any) -> None:
    with pytest.raises(ArtifactError, match=f"m.pt: neither a state dict .* but a {type(loaded).__name__}"):
        state_dict(loaded, PATH, is_tensor)


@pytest.mark.parametrize(
    "loaded",
    [
        {"net": {"w": b"1"}, "acc": b"2"},
        {"state_dict": {"w": b"1"}, "ema_state_dict": {"w": b"2"}},
        {"w": b"1", "layers": [{"w": b"2"}]},
        {"model": {"w": b"1"}, "logit_scale": b"2"},
        {"state_dict": {"w": b"1"}, "optimizer_head": {"w": b"2"}},
        {"state_dict": {"w": b"1"}, "optimal_queries": b"2"},
    ],
)
def test_a_checkpoint_with_tensors_beside_its_weights_is_refused_with_its_keys(loaded: Any) -> None:
    with pytest.raises(ArtifactError) as caught:
        state_dict(loaded, PATH, is_tensor)
    assert all(repr(key) in str(caught.value) for key in loaded)


@pytest.mark.parametrize("key", [None, ("model",)])
@pytest.mark.parametrize("inner", ["head", "layer._extra_state"])
def test_tensors_inside_values_of_a_state_dict_are_refused_without_naming_that_dict(key: Any, inner: str) -> None:
    with pytest.raises(ArtifactError, match="inside other values") as caught:
        state_dict({"model": {"w": b"1", inner: {"w": b"2"}}}, PATH, is_tensor, key)
    assert repr(inner) in str(caught.value)
    assert "--state-key" not in str(caught.value)


def test_a_refused_checkpoint_names_the_state_dicts_that_may_be_meant() -> None:
    deep = {"ema": {"model": {"w": b"1"}, "a.b": {"w": b"2"}}, "step": 1}
    with pytest.raises(ArtifactError, match=r"under ema\.model, \['ema', 'a\.b'\]: .* --state-key ema\.model"):
        state_dict(deep, PATH, is_tensor)


@pytest.mark.parametrize(
    "beside", [{"optimizer": {"state": [b"2"]}}, {"rng_state": b"2"}, {"callbacks": {"best": b"2"}}, {"epoch": 3}]
)
def test_the_state_of_a_training_is_left_out_by_its_name(beside: dict[str, Any]) -> None:
    assert state_dict({"state_dict": {"w": b"1"}, **beside}, PATH, is_tensor) == ({"w": b"1"}, list(beside))


@pytest.mark.parametrize(
    ("key", "tensors"),
    [
        ("net", {"w": b"1"}),
        ("ema.model", {"w": b"2"}),
        ("a.b", {"w": b"3"}),
        (["a.b"], {"w": b"3"}),
        (["parts", 1], {"w": b"4"}),
        ("parts.1", {"w": b"4"}),
        ([7], {"w": b"5"}),
    ],
)
def test_a_state_key_names_the_weights_wherever_they_lie(key: Any, tensors: dict[str, Any]) -> None:
    loaded = {"net": {"w": b"1"}, "ema": {"model": {"w": b"2"}}, "a.b": {"w": b"3"}, "parts": [0, {"w": b"4"}]}
    whole = {**loaded, 7: {"w": b"5"}}
    found = state_dict(whole, PATH, is_tensor, key_of({"state_key": key}, PATH))
    assert found[0] == tensors
    assert "net" in found[1] or key == "net"


@pytest.mark.parametrize("key", ["nothing", "net.w.x", ["net", 0], "parts.9", ["parts", -1]])
def test_a_state_key_that_is_not_there_is_refused_with_those_that_are(key: Any) -> None:
    loaded = {"net": {"w": b"1"}, "parts": [0]}
    given = key_of({"state_key": key}, PATH)
    assert given is not None
    with pytest.raises(ArtifactError, match=r"m\.pt: it has no "):
        select(loaded, PATH, given)


@pytest.mark.parametrize("key", ["", [], 7, [""], [None], [True], {"a": 1}])
def test_a_state_key_of_another_type_is_refused(key: Any) -> None:
    with pytest.raises(ArtifactError, match="state_key must be a key"):
        key_of({"state_key": key}, PATH)


def test_a_state_key_is_written_as_a_manifest_takes_it() -> None:
    assert [written(key) for key in (("a",), ("a", "b"), ("a.b",), ("a.b", "c"), ("a", 1))] == [
        "a", "a.b", "a.b", "['a.b', 'c']", "['a', 1]"
    ]  # fmt: skip


def test_a_checkpoint_that_holds_itself_is_searched_once() -> None:
    loop: dict[str, Any] = {"w": b"1"}
    loop["self"] = {"again": [loop]}
    with pytest.raises(ArtifactError, match="tensors beside its state dict"):
        state_dict(loop, PATH, is_tensor)
    empty: dict[str, Any] = {}
    empty["self"] = empty
    assert state_dict({"w": b"1", "x": empty}, PATH, is_tensor) == ({"w": b"1"}, ["x"])


def test_a_refusal_is_short_though_keys_are_long_and_many() -> None:
    loaded = {"n" * 100_000 + str(number): {"w": b"1"} for number in range(100)}
    with pytest.raises(ArtifactError) as caught:
        state_dict(loaded, PATH, is_tensor)
    assert len(str(caught.value)) < 5000


def test_a_large_value_under_many_names_is_searched_once() -> None:
    asked = 0

    def counted(value: Any) -> bool:
        nonlocal asked
        asked += 1
        return isinstance(value, bytes)

    shared = list(range(10_000))
    state_dict({"w": b"1", **{f"x{number}": shared for number in range(1000)}}, PATH, counted)
    assert asked < 20_000


def test_names_are_strings() -> None:
    with pytest.raises(ArtifactError, match="named 1, which is no string"):
        state_dict({1: b"1"}, PATH, is_tensor)


def test_what_was_ignored_is_said_in_the_metadata() -> None:
    assert metadata_of(["epoch", "lr"], StateDict(), PATH) == {"ignored": "epoch, lr"}
    assert metadata_of([], StateDict(), PATH) == {}


@pytest.mark.parametrize("local", [{"version": (1, 2)}, {"version": b"1"}, {1: 2}, 5])
def test_versions_that_an_image_cannot_carry_are_refused(local: Any) -> None:
    tensors = StateDict()
    tensors._metadata = {"": local}
    with pytest.raises(ArtifactError, match=r"`_metadata` that images do not carry .*state\._metadata\.clear"):
        metadata_of([], tensors, PATH)


def test_versions_of_modules_stay_with_the_state_dict_that_was_chosen() -> None:
    inner = StateDict(w=b"1")
    inner._metadata = {"": {"version": 2}, "norm": {"version": 1, "more": {"a": 1}}}
    tensors, _ = state_dict({"model": inner, "epoch": 3}, PATH, is_tensor)
    assert decode_versions(metadata_of([], tensors, PATH)[STATE_VERSIONS]) == inner._metadata


def test_a_builder_is_told_with_what_it_is_called_with_and_where_it_may_lie() -> None:
    options = {"module": "package:build", "module_args": {"layers": 2}, "ignore": ["x*"], "allow_pickle": True}
    found = builder_of(Artifact("torch", (PATH,), options, "/models"))
    assert found is not None
    assert found.kind in EXECUTABLE_KINDS
    assert found.attributes == {
        "module": "package:build", "module_args": {"layers": 2}, "ignore": ["x*"], "origin": "/models"
    }  # fmt: skip
    assert builder_of(Artifact("torch", (PATH,), {})) is None
