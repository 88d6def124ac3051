"""Orders by name cost the same, however many models are registered: work is counted, not time."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

import trims
from trims.registry import sqlite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.control import Admin
    from trims.daemon.main import Daemon

FEW, MANY = 200, 2000
#: Pages of a larger table lie a level deeper, and dictionaries grow now and then.
_MORE = 1.25


class Work:
    """Counts calls of Python in this thread, and steps of sqlite in all."""

    def __init__(self, daemon: Daemon) -> None:
        self._registry: Any = daemon.registry

    def of(self, do: Callable[[], object]) -> tuple[int, int]:
        calls = steps = 0

        def called(frame: object, event: str, value: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        def stepped() -> None:
            nonlocal steps
            steps += 1

        self._registry._db.set_progress_handler(stepped, 1)
        sys.setprofile(called)
        try:
            do()
        finally:
            sys.setprofile(None)
            self._registry._db.set_progress_handler(None, 1)
        return calls, steps


def fill(daemon: Daemon, first: int, last: int) -> None:
    """Register models with two versions each, and have each looked up once."""
    for number in range(first, last):
        name = f"m{number:05d}"
        for version in ("1", "2"):
            manifest = {"name": name, "version": version, "artifact": {"path": f"{number}.npz"}}
            daemon.registry.put(manifest, "/models")
        daemon.store.resolver._rows[name] = name, 0.0


def orders(daemon: Daemon, turn: str) -> dict[str, Callable[[], object]]:
    """Return every order that names one model."""
    changes, door, registry = daemon.control._registrations, daemon.control, daemon.registry
    name = f"m00100-{turn}"

    def register(version: str, *, replace: bool = False) -> object:
        raw = {"name": name, "version": version, "artifact": {"path": f"{turn}-{version}.npz"}}
        return changes.register(raw, "/models", replace=replace)

    def unknown() -> None:
        with pytest.raises(trims.errors.ModelNotFoundError):
            registry.find("m00100-unknown")

    return {
        "add": lambda: register("1"),
        "add beside": lambda: register("2"),
        "replace": lambda: register("2", replace=True),
        "show": lambda: door._model(registry.find(name), story=True),
        "versions": lambda: [registry.find(row) for row in door._rows(name)],
        "alias": lambda: changes.alias(name, "2", back=False, remove=False),
        "rm of a version": lambda: changes.unregister(f"{name}@1", every=False),
        "rm": lambda: changes.unregister(name, every=False),
        "unknown name": unknown,
    }


def test_an_order_by_name_does_as_much_work_among_thousands(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_MOST_NEAR", 5)
    work, found = Work(daemon), dict[int, dict[str, tuple[int, int]]]()
    for turn in ("warm", "few"):
        fill(daemon, 0, FEW)
        found[FEW] = {what: work.of(do) for what, do in orders(daemon, turn).items()}
    fill(daemon, FEW, MANY)
    found[MANY] = {what: work.of(do) for what, do in orders(daemon, "many").items()}
    for what, (calls, steps) in found[MANY].items():
        few_calls, few_steps = found[FEW][what]
        assert calls <= few_calls * _MORE, f"{what}: {few_calls} calls of Python became {calls}"
        assert steps <= few_steps * _MORE, f"{what}: {few_steps} steps of sqlite became {steps}"


def test_a_client_that_adds_is_answered_with_that_models_versions_only(
    daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(daemon, 0, 50)
    asked = list[str]()
    find = daemon.registry.find
    monkeypatch.setattr(daemon.registry, "find", lambda name: asked.append(name) or find(name))
    with trims.admin(daemon.config.runtime_dir) as admin:
        _add_and_list(admin, checkpoint)
    assert {name.partition("@")[0] for name in asked} == {"x"}


def _add_and_list(admin: Admin, checkpoint: Callable[..., Path]) -> None:
    admin.add({"name": "x", "version": "1", "artifact": {"path": str(checkpoint("x"))}}, lazy=True)
    admin.add({"name": "x", "version": "2", "artifact": {"path": str(checkpoint("y"))}}, lazy=True)
    assert [model.version for model in admin.models("x")] == ["1", "2"]
    assert admin.models("nobody") == []
