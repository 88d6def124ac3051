"""`trims eval` and `trims report` with a real daemon and real predictors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fleets import register
from repository import ROOT

from trims.cli.main import main
from trims.trace import spans
from trims.trace.reader import read_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

INPUTS = {"inputs": [{"name": "x", "dtype": "FP64", "shape": [-1]}]}


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    spans.stop()


@pytest.fixture
def model(daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))  # predictors import their functions from there
    register(daemon, checkpoint, predictor={"function": "own_functions:scale"}, **INPUTS)
    return "m"


def run(daemon: Daemon, capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert main(["--runtime-dir", str(daemon.config.runtime_dir), *arguments, "--json"]) == status
    told = capsys.readouterr()
    return json.loads(told.out) if told.out else told.err


def test_stages_of_every_start_add_up_and_are_accounted_for(
    daemon: Daemon, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(daemon, capsys, "eval", model, "--repeat", "2", "--from", "disk,cpu")
    rows = {(row["tier"], row["way"]): row for row in found["rows"]}
    assert rows.keys() == {
        ("disk", "fresh"), ("disk", "template"), ("cpu", "fresh"), ("cpu", "template"), ("-", "hot"),
    }, found["discarded"]  # fmt: skip
    for row in found["rows"]:
        assert row["accounted"] > 0.9
        assert row["seconds"]["samples"] == 2
    assert rows["cpu", "fresh"]["stages"].keys() >= {"process", "import framework", "open", "build", "run"}
    assert "import framework" not in rows["cpu", "template"]["stages"]
    assert list(rows["-", "hot"]["stages"]) == ["run", "unattributed"]
    assert found["answers_differ"] is False
    samples = {each.trace_id for each in read_traces(daemon.config.state_dir / "trace")}
    assert {row["trace_id"] for row in found["rows"]} <= samples, "each row's trace can be looked at"


def test_an_evaluation_is_listed_reported_explained_and_goes_on(
    daemon: Daemon, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(daemon, capsys, "eval", model, "--repeat", "2", "--from", "cpu", "--how", "template")
    path = daemon.config.state_dir / "evaluations" / f"{first['id']}.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))  # interrupted after its first sample
    again = run(daemon, capsys, "eval", "--resume", first["id"])
    assert (again["id"], again["rows"][0]["seconds"]["samples"]) == (first["id"], 2)
    second = run(daemon, capsys, "eval", model, "[1.5]", "--repeat", "1", "--from", "cpu", "--how", "template")
    assert [(each["id"], each["samples"]) for each in run(daemon, capsys, "report")] == [
        (first["id"], 2), (second["id"], 1),
    ]  # fmt: skip
    assert [each["id"] for each in run(daemon, capsys, "report", first["id"], second["id"])] == [
        first["id"], second["id"],
    ]  # fmt: skip
    runtime = ["--runtime-dir", str(daemon.config.runtime_dir)]
    assert main([*runtime, "report", "--explain", first["id"], second["id"]]) == 0
    assert "the stacks are equal" in capsys.readouterr().out


def test_a_tier_that_cannot_be_brought_about_is_said_and_the_others_are_measured(
    daemon: Daemon, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = ["--runtime-dir", str(daemon.config.runtime_dir)]
    assert main([*runtime, "eval", model, "--repeat", "1", "--from", "gpu,cpu", "--how", "template", "--json"]) == 0
    told = capsys.readouterr()
    assert [row["tier"] for row in json.loads(told.out)["rows"]] == ["cpu"]
    assert "nothing was started from gpu" in told.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval",), ("eval", "m", "--resume", "x"), ("eval", "--resume", "x"), ("eval", "m", "--from", "moon"),
        ("eval", "m", "--how", ""), ("eval", "m", "--repeat", "0"), ("eval", "no-such"), ("report", "nothing"),
        ("report", "--explain"),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_refused(
    daemon: Daemon, model: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert run(daemon, capsys, *arguments, status=1)
