"""Which of a checkpoint's values are the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trims.core.errors import ArtifactError
from trims.formats.base import Artifact
from trims.formats.torch_state import builder_of, metadata_of, state_dict
from trims.image.program import EXECUTABLE_KINDS

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
    ],
)
def test_tensors_and_what_is_left_out(loaded: Any, tensors: dict[str, Any], ignored: list[str]) -> None:
    assert state_dict(loaded, PATH, is_tensor) == (tensors, ignored)


@pytest.mark.parametrize("loaded", [[b"1"], b"1", {"epoch": 1}, {"model": {"epoch": 1}}, None])
def test_what_has_no_weights_is_refused(loaded: Any) -> None:
    with pytest.raises(ArtifactError, match=f"m.pt: neither a state dict .* but a {type(loaded).__name__}"):
        state_dict(loaded, PATH, is_tensor)


def test_names_are_strings() -> None:
    with pytest.raises(ArtifactError, match="named 1, which is no string"):
        state_dict({1: b"1"}, PATH, is_tensor)


def test_what_was_ignored_is_said_in_the_metadata() -> None:
    assert metadata_of(["epoch", "lr"]) == {"ignored": "epoch, lr"}
    assert metadata_of([]) == {}


def test_a_builder_is_told_with_what_it_is_called_with_and_where_it_may_lie() -> None:
    options = {"module": "package:build", "module_args": {"layers": 2}, "ignore": ["x*"], "allow_pickle": True}
    found = builder_of(Artifact("torch", (PATH,), options, "/models"))
    assert found is not None
    assert found.kind in EXECUTABLE_KINDS
    assert found.attributes == {
        "module": "package:build", "module_args": {"layers": 2}, "ignore": ["x*"], "origin": "/models"
    }  # fmt: skip
    assert builder_of(Artifact("torch", (PATH,), {})) is None
