"""`trims eval --scenario` with a real daemon, real predictors, and endpoints with and without tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from endpoints import Endpoint
from fleets import register
from repository import ROOT
from trims_bench.evaluation.session import only_evaluation
from trims_bench.workloads.result import Workload

from trims.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
INPUTS = {"inputs": [{"name": "x", "dtype": "FP64", "shape": [-1]}]}


@pytest.fixture
def model(daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))  # predictors import their functions from there
    register(daemon, checkpoint, predictor={"function": "own_functions:scale"}, **INPUTS)
    return "m"


def run(daemon: Daemon, capsys: pytest.CaptureFixture[str], *arguments: str) -> Workload:
    assert main(["--runtime-dir", str(daemon.config.runtime_dir), "eval", *arguments, "--json"]) == 0
    return Workload.from_json(json.loads(capsys.readouterr().out)["workload"])


def test_a_load_starts_an_endpoint_of_its_own_whose_first_answers_are_cold(
    daemon: Daemon, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(daemon, capsys, model, "--scenario", "single-stream", "--requests", "30")
    assert (found.answered, found.errors, found.ended) == (30, {}, "done")
    (part,) = found.models
    assert part.cold == 1, "a predictor was started for the first request"
    assert part.cold_latency is not None
    assert part.cold_latency.p50 == found.latency.longest  # type: ignore[union-attr]
    batched = run(daemon, capsys, model, "--scenario", "batched", "--batch", "3", "--requests", "5")
    assert batched.answered == 5


def test_a_load_on_a_running_endpoint_brings_its_token(
    daemon: Daemon, model: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    token = folder / "token"
    token.touch(0o600)
    token.write_text("0123456789abcdef")
    endpoint = Endpoint(daemon.config.runtime_dir, "--token-file", str(token))
    url = f"http://127.0.0.1:{endpoint.port}"
    try:
        load = model, "--scenario", "poisson", "--rate", "50", "--requests", "40", "--endpoint", url
        found = run(daemon, capsys, *load, "--token-file", str(token), "--input", "[1.5, 2.5]")
        assert (found.answered, found.errors) == (40, {})
        runtime_dir = ("--runtime-dir", str(daemon.config.runtime_dir))
        assert main([*runtime_dir, "eval", *load]) == 1
        assert "--token-file" in capsys.readouterr().err
        assert main([*runtime_dir, "eval", "no-such", *load[1:], "--token-file", str(token)]) == 1
        assert "no-such" in capsys.readouterr().err
    finally:
        assert endpoint.end() == 0


def test_a_load_is_refused_while_another_evaluation_runs(
    daemon: Daemon, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ["--runtime-dir", str(daemon.config.runtime_dir), "eval", model, "--scenario", "closed", "--requests", "5"]
    with only_evaluation(daemon.config.state_dir):
        assert main(load) == 1
    assert "another evaluation is running" in capsys.readouterr().err
    assert main(load) == 0
