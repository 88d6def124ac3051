"""Loading without a daemon: a private copy of the same bytes, or one error that says why not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from safetensors.numpy import load_file
from trims_client.fallback import load_here

from trims.core.errors import ConversionError
from trims.registry.sqlite import SqliteRegistry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def state_dir(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMS_STATE_DIR", str(folder / "state"))


def test_a_file_and_a_registered_model_are_loaded_into_private_memory(
    folder: Path, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    registry = SqliteRegistry(folder / "state" / "registry.db")
    registry.put({"name": "bert", "artifact": {"path": str(path)}}, "")
    registry.close()
    for name in (str(path), "bert"):
        with load_here(name) as weights:
            assert (weights.name, weights.place, weights.shared, weights.trusted) == (name, "cpu", False, True)
            assert {key: array.tobytes() for key, array in weights.items()} == {
                key: array.tobytes() for key, array in load_file(path).items()
            }


def test_a_model_that_cannot_be_loaded_is_named_with_the_converters_words(folder: Path) -> None:
    with pytest.raises(ConversionError, match=r"^absent could not be loaded without a daemon: no model 'absent'"):
        load_here("absent")
    (folder / "broken.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ConversionError, match=r"broken\.safetensors could not be loaded without a daemon: .*header"):
        load_here(str(folder / "broken.safetensors"))


def test_a_child_that_talks_without_end_is_quoted_by_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "python").write_text("#!/bin/sh\nprintf '%09999d' 7 >&2\nexit 1\n")
    (folder / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    with pytest.raises(ConversionError) as caught:
        load_here("m")
    assert str(caught.value) == f"m could not be loaded without a daemon: {'0' * 1999}7"
