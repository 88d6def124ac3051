"""A restart of the daemon: what it knew of a model before, the next one knows without being asked to load it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from endpoints import Endpoint

from trims.control import admin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

ROUTES = ("/v2/models/{}", "/v2/models/{}/config", "/v2/models/{}/ready")
#: Fields of `trims show` and `trims list` that say where image and artifact lie, as far as this daemon has looked, and
#: not what they are.
MOVING = {"replicas", "in_memory", "files"}


@pytest.fixture
def models(folder: Path) -> list[dict[str, Any]]:
    """Manifests that leave the format to be found: served in place, converted, and never looked into."""
    from onnx_files import linear

    path = linear(folder)
    np.savez(folder / "arrays.bin", weight=np.ones((4, 4), np.float32))
    arrays = (folder / "arrays.bin.npz").rename(folder / "arrays.data")
    return [
        {"name": "graph", "artifact": {"path": str(path)}},
        {"name": "pinned", "artifact": {"path": str(path)}, "residency": {"persist": "always"}},
        {"name": "arrays", "artifact": {"path": str(arrays)}},
        {"name": "unread", "artifact": {"path": str(path)}, "description": "registered, and nothing else"},
    ]


def shown(daemon: Daemon, names: list[str]) -> dict[str, Any]:
    """Return what the commands print of each model."""
    found: dict[str, Any] = {}
    for command in (["list"], *(["show", name] for name in names)):
        run = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(daemon.config.runtime_dir)]
        done = subprocess.run([*run, *command, "--json"], check=True, capture_output=True, timeout=120)
        printed = json.loads(done.stdout)
        for model in printed if isinstance(printed, list) else [printed]:
            found[f"{command[0]} {model['name']}"] = {key: value for key, value in model.items() if key not in MOVING}
    return found


def answered(daemon: Daemon, names: list[str]) -> dict[str, tuple[int, Any]]:
    """Return what the routes answer of each model, and an inference of each graph."""
    endpoint = Endpoint(daemon.config.runtime_dir)
    try:
        found: dict[str, tuple[int, Any]] = {}
        for name in names:
            body = {"inputs": [{"name": "x", "shape": [1, 32], "datatype": "FP32", "data": list(range(32))}]}
            status, answer = endpoint.ask("POST", f"/v2/models/{name}/infer", body)
            found[f"infer {name}"] = (status, answer.get("outputs", answer))
        found |= {route.format(name): endpoint.ask("GET", route.format(name)) for name in names for route in ROUTES}
        found["index"] = endpoint.ask("POST", "/v2/repository/index", {})
        return found
    finally:
        endpoint.end()


def ended(daemon: Daemon) -> None:
    daemon.ask_to_end(purge=False)
    daemon.stop()


@pytest.mark.usefixtures("own_files")
def test_commands_and_routes_say_of_each_model_after_a_restart_what_they_said_before(
    serve: Callable[..., Daemon], models: list[dict[str, Any]]
) -> None:
    names = [model["name"] for model in models]
    before = serve(trust="identity")
    with admin(before.config.runtime_dir) as control:
        for model in models:
            control.add(model, lazy=model["name"] == "unread")
    first = answered(before, names)
    commands = shown(before, names)
    ended(before)
    after = serve(trust="identity")
    assert shown(after, names) == commands
    assert answered(after, names) == first
    assert {first[f"infer {name}"][0] for name in ("graph", "pinned", "unread")} == {200}
    assert commands["show unread"]["format"] == "onnx"
    assert commands["show arrays"]["format"] == "npz"
    assert first["infer arrays"][0] == 501
