"""Tiny models, converted and loaded once for the tests of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tiny_models import loaded, named, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    #: Loads the predictor of a class, with options of its manifest and of its artifact.
    Load = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that saves a tiny model of a class, once, and gives its folder."""
    made: dict[str, Path] = {}

    def save_once(kind: str, **fields: Any) -> Path:
        key = f"{kind} {sorted(fields.items())}"
        if key not in made:
            made[key] = save(named(kind), tmp_path_factory.mktemp(kind) / kind, **fields)
        return made[key]

    return save_once


@pytest.fixture
def load(saved: Callable[..., Path]) -> Load:
    """Return a function that loads a tiny model of a class."""

    def load_one(kind: str, options: dict[str, Any] | None = None, **artifact: Any) -> AbstractContextManager[Any]:
        return loaded(saved(kind), options, **artifact)

    return load_one


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the variable that the predictor sets go after each test: it counts for all of a process."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
