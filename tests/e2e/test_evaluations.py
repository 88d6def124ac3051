"""`trims eval` and `trims report` with a real daemon and real predictors."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import mxnet_files
import numpy as np
import pytest
from fleets import register
from looking import wait_until
from repository import ROOT
from trims_bench.evaluation import tiers
from trims_bench.evaluation.database.evaluations import Evaluations

import trims
from trims.cli.main import main
from trims.control import admin
from trims.trace import spans
from trims.trace.reader import Trace, read_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims_bench.evaluation.records import Evaluated

    from trims.daemon.main import Daemon

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("forked_starts")]
MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))
SYMBOL = {
    "nodes": [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "null", "name": "w", "inputs": []},
        {
            "op": "FullyConnected", "name": "y", "attrs": {"num_hidden": "2", "no_bias": "True"},
            "inputs": [[0, 0, 0], [1, 0, 0]],
        },
    ],
    "arg_nodes": [0, 1],
    "heads": [[2, 0, 0]],
}  # fmt: skip
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


def kept_trace(daemon: Daemon, trace_id: str) -> Trace:
    with Evaluations(f"sqlite:///{daemon.config.state_dir / 'evaluations.db'}") as kept:
        found = kept.trace(trace_id)
    assert found is not None
    return found


def test_stages_of_every_start_add_up_and_are_accounted_for(
    daemon: Daemon, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(daemon, capsys, "eval", model, "--repeat", "2", "--from", "disk,cpu", "--how", "fresh,template,hot")
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
    roles = {each.process.role for each in kept_trace(daemon, rows["cpu", "template"]["trace_id"]).spans}
    assert roles >= {"evaluation", "template", "predictor"}
    samples = {each.trace_id for each in read_traces(daemon.config.state_dir / "trace")}
    assert {row["trace_id"] for row in found["rows"]} <= samples, "each row's trace can be looked at"


def test_an_evaluation_is_listed_reported_explained_and_goes_on(
    daemon: Daemon, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(daemon, capsys, "eval", model, "--repeat", "2", "--from", "cpu", "--how", "template")
    with closing(sqlite3.connect(daemon.config.state_dir / "evaluations.db")) as kept:
        kept.execute("DELETE FROM samples WHERE number = 1")  # interrupted after its first sample
        kept.execute("UPDATE evaluations SET ended = 0")
        kept.commit()
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
    run(daemon, capsys, "report", "--remove", first["id"])
    assert [each["id"] for each in run(daemon, capsys, "report", "--model", model)] == [second["id"]]


def test_a_report_is_written_as_page_picture_and_table(
    daemon: Daemon, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = run(daemon, capsys, "eval", model, "--repeat", "1", "--how", "hot", "--batch", "1,2")
    assert [each["batch"] for each in made["batch_sizes"]] == [1, 2]
    runtime = ["--runtime-dir", str(daemon.config.runtime_dir), "report", made["id"]]
    # Each by a process of its own, as a user has it: matplotlib keeps fonts open.
    for form, path, begin in (("--html", tmp_path / "r.html", b"<!doctype"), ("--png", tmp_path / "r.png", b"\x89PNG")):
        subprocess.run([sys.executable, "-m", "trims.cli.main", *runtime, form, str(path)], check=True, timeout=50)
        assert path.read_bytes().startswith(begin)
    assert main([*runtime, "--csv"]) == 0
    assert "steady run" in capsys.readouterr().out


def test_the_framework_alone_is_measured_and_everything_is_compared_with_it(
    daemon: Daemon, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(daemon, capsys, "eval", model, "--repeat", "1", "--from", "file,cpu", "--how", "alone,template")
    rows = {(row["tier"], row["way"]): row for row in found["rows"]}
    assert rows.keys() == {("file", "alone"), ("cpu", "alone"), ("file", "template"), ("cpu", "template")}
    assert not {"open", "attach", "connect"} & rows["cpu", "alone"]["stages"].keys(), "no daemon takes part"
    for (tier, way), row in rows.items():
        assert row["over_alone"] == pytest.approx(rows[tier, "alone"]["seconds"]["value"] / row["seconds"]["value"]), (
            tier,
            way,
        )


@pytest.mark.mxnet
@pytest.mark.skipif(not MXNET_PYTHON.exists(), reason="no MXNet environment: make mxnet-env")
def test_a_model_of_mxnet_is_measured_in_its_own_environment(
    daemon: Daemon, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = mxnet_files.save(folder, {"arg:w": mxnet_files.array("F32", (2, 3), fill=0x3F)}, SYMBOL)
    with admin(daemon.config.runtime_dir) as control:
        control.add({"name": "x", "artifact": {"path": str(path)}, "framework": {"name": "mxnet"}}, lazy=True)
    inputs = '{"inputs": [{"name": "data", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}'
    found = run(
        daemon, capsys, "eval", "x", inputs, "--repeat", "1", "--from", "file,cpu", "--how", "alone,template",
        "--environments", f"mxnet={MXNET_PYTHON}",
    )  # fmt: skip
    assert {(row["tier"], row["way"]) for row in found["rows"]} == {
        ("file", "alone"), ("cpu", "alone"), ("file", "template"), ("cpu", "template"),
    }, found["discarded"]  # fmt: skip


def test_the_library_does_what_the_command_does(daemon: Daemon, model: str) -> None:
    taken: list[int] = []
    found = trims.evaluate(
        model, {"x": np.ones(2)}, ways=["hot"], repeats=2, batches=[1, 3], runtime_dir=str(daemon.config.runtime_dir),
        progress=lambda done, total, sample: taken.append(done),
    )  # fmt: skip
    assert [(each.way, each.batch, each.why_not) for each in found.samples] == [("hot", 1, ""), ("hot", 3, "")] * 2
    assert (taken, found.ended) == ([1, 2, 3, 4], True)
    with pytest.raises(trims.errors.CallerError):
        trims.evaluate(model, {"z": np.ones(2)}, ways=["hot"], runtime_dir=str(daemon.config.runtime_dir))


def test_a_tier_that_cannot_be_brought_about_is_said_and_the_others_are_measured(
    daemon: Daemon, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = ["--runtime-dir", str(daemon.config.runtime_dir)]
    assert main([*runtime, "eval", model, "--repeat", "1", "--from", "gpu,cpu", "--how", "template", "--json"]) == 0
    told = capsys.readouterr()
    assert [row["tier"] for row in json.loads(told.out)["rows"]] == ["cpu"]
    assert list(json.loads(told.out)["unreachable"]) == ["gpu"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval",), ("eval", "m", "--resume", "x"), ("eval", "--resume", "x"), ("eval", "m", "--from", "moon"),
        ("eval", "m", "--how", ""), ("eval", "m", "--repeat", "0"), ("eval", "no-such"), ("report", "nothing"),
        ("report", "--explain"), ("eval", "m", "--batch", "x"), ("eval", "m", "--idle", "-1"),
        ("report", "x", "--model", "m"), ("report", "--remove"), ("report", "--database", "mysql://h/x"),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_refused(
    daemon: Daemon, model: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert run(daemon, capsys, *arguments, status=1)


def test_an_evaluation_that_is_killed_at_any_moment_goes_on_and_leaves_nothing(
    daemon: Daemon, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = ["--runtime-dir", str(daemon.config.runtime_dir)]
    command = [sys.executable, "-m", "trims.cli.main", *runtime, "eval"]
    order = [model, "--id", "killed", "--repeat", "3", "--from", "disk,cpu", "--how", "template,hot", "--json-lines"]
    random, kills, more = Random(5), 0, order
    while True:
        process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if random.random() < 0.4:
                time.sleep(random.random() * 0.02)  # anywhere in the next sample
                process.kill()
                break
            assert json.loads(line)["done"] <= 9
        process.stdout.close()
        kills += process.wait(50) < 0
        if process.returncode == 0:
            break
        assert kills < 20
        more = ["--resume", "killed", "--json-lines"]
    assert kills >= 1
    found = run(daemon, capsys, "report", "killed")[0]
    assert [((row["tier"], row["way"]), row["seconds"]["samples"]) for row in found["rows"]] == [
        (("disk", "template"), 3), (("cpu", "template"), 3), (("-", "hot"), 3),
    ], found["discarded"]  # fmt: skip
    assert (found["ended"], found["discarded"]) == (True, {})
    with admin(daemon.config.runtime_dir) as control:
        wait_until(lambda: control.status().stats.leases == 0, "no predictor is left with a lease")


def test_a_model_that_others_read_keeps_its_readers_and_takes_new_ones(
    daemon: Daemon, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "_TRIES", 2)
    with trims.connect(str(daemon.config.runtime_dir)) as session, session.open(model, place="cpu"):
        found = run(daemon, capsys, "eval", model, "--from", "disk", "--how", "template", "--repeat", "1", status=1)
        assert (list(found["unreachable"]), found["rows"]) == (["disk"], [])
        session.open(model, place="cpu").close()


def test_where_a_loop_runs_an_evaluation_runs_beside_it(daemon: Daemon, model: str) -> None:
    async def cell() -> Evaluated:
        return trims.evaluate(model, ways=["hot"], repeats=1, runtime_dir=str(daemon.config.runtime_dir))  # type: ignore[no-any-return]

    assert len(asyncio.run(cell()).samples) == 1
