"""Code beside a manifest that is edited: the next requests are answered by it, and models are reloaded by command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from endpoints import Endpoint
from looking import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

CODE = """
from helper import ANSWER
def run(weights, inputs):
    return {"y": inputs["x"] * 0 + ANSWER}
"""


@pytest.fixture
def endpoint(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    made = Endpoint(daemon.config.runtime_dir, "--isolation", "process")
    yield made
    made.end(signal.SIGKILL)


@pytest.fixture
def model(daemon: Daemon, checkpoint: Callable[..., Path], folder: Path) -> Path:
    """The folder of a manifest `m` with its code."""
    (folder / "helper.py").write_text("ANSWER = 1")
    (folder / "mine.py").write_text(CODE)
    manifest = {"name": "m", "artifact": {"path": str(checkpoint("m"))}, "predictor": {"function": "mine:run"}}
    (folder / "m.yaml").write_text(json.dumps(manifest))
    command(daemon, "add", str(folder / "m.yaml"))
    return folder


def command(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(daemon.config.runtime_dir)]
    return subprocess.run([*run, *words], check=False, capture_output=True, text=True, timeout=120)


def answer(endpoint: Endpoint) -> Any:
    status, told = endpoint.infer("m", [0.0])
    assert status == 200, told
    return told["outputs"][0]["data"][0]


@pytest.mark.parametrize("replaced", [False, True], ids=["edited", "edited and added again"])
def test_edited_code_answers_the_next_requests(daemon: Daemon, endpoint: Endpoint, model: Path, replaced: bool) -> None:
    assert answer(endpoint) == 1
    before = (model / "helper.py").stat()
    (model / "helper.py").write_text("ANSWER = 2")  # as long as before, and in the same second
    os.utime(model / "helper.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    if replaced:
        assert command(daemon, "add", "--replace", str(model / "m.yaml")).returncode == 0
    wait_until(lambda: answer(endpoint) == 2, "the helper of the code that the manifest names was edited")
    (model / "mine.py").write_text(CODE.replace("ANSWER}", "ANSWER + 3}"))
    wait_until(lambda: answer(endpoint) == 5, "the code that the manifest names was edited")


def test_code_that_cannot_run_is_an_error_until_it_is_edited_again(endpoint: Endpoint, model: Path) -> None:
    assert answer(endpoint) == 1
    (model / "helper.py").write_text("ANSWER == 1")
    wait_until(lambda: endpoint.infer("m", [0.0])[0] == 500, "the edited code fails")
    assert endpoint.ask("GET", "/v2/models/m/ready")[0] != 200
    (model / "helper.py").write_text("ANSWER = 4")
    wait_until(lambda: endpoint.infer("m", [0.0])[0] == 200, "the code was edited again")
    assert answer(endpoint) == 4


def test_models_are_reloaded_and_unloaded_by_command(daemon: Daemon, endpoint: Endpoint, model: Path) -> None:
    for verb in ("unload", "reload"):
        assert answer(endpoint) == 1
        done = command(daemon, verb, "m")
        assert (done.returncode, done.stderr) == (0, "")
        after = endpoint.infer("m", [0.0])[1]["parameters"]
        assert after["cold"] == (verb == "unload"), "a reload has a predictor ready"
    assert command(daemon, "reload", "nowhere").returncode == 1
    endpoint.end()
    assert "there is no endpoint" in command(daemon, "unload", "m").stderr
    assert command(daemon, "reload", "m").stdout.startswith("m is at ")
