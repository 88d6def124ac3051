"""`trims trace` over real processes: one tree from the command through endpoint and predictor to the daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from endpoints import Endpoint
from fleets import register
from looking import wait_until
from trims_client import connect

from trims.cli.main import main
from trims.trace import spans
from trims.trace.reader import read_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
INPUTS = {"inputs": [{"name": "x", "dtype": "FP64", "shape": [-1]}]}


@pytest.fixture(autouse=True)
def _off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TRIMS_TRACE", "TRIMS_TRACE_DIR", "TRIMS_TRACE_LEVEL", "TRACEPARENT"):
        monkeypatch.delenv(name, raising=False)
    yield
    spans.stop()


@pytest.fixture
def endpoint(daemon: Daemon, checkpoint: Callable[..., Path]) -> Iterator[Endpoint]:
    register(daemon, checkpoint, predictor={"function": "own_functions:scale"}, **INPUTS)
    made = Endpoint(daemon.config.runtime_dir, "--isolation", "process")
    yield made
    made.end()


def traced(daemon: Daemon, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    main(["--runtime-dir", str(daemon.config.runtime_dir), "trace", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run a daemon that records everything in a process of its own; its folder."""
    monkeypatch.setenv("TRIMS_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("TRIMS_STATE_DIR", str(tmp_path / "state"))
    flags = ("--gpus", "none", "--trace", "yes")
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen([sys.executable, "-m", "trims.cli.main", "serve", *flags], stdout=log, stderr=log)
    try:
        wait_until(lambda: "serving at" in (tmp_path / "log").read_text(), "it does not serve; see its log")
        yield tmp_path
    finally:
        child.terminate()
        assert child.wait(60) == 0


def test_a_daemon_records_everything_where_it_is_asked_to(
    served: Path, capsys: pytest.CaptureFixture[str], checkpoint: Callable[..., Path]
) -> None:
    assert main(["add", str(checkpoint("m"))]) == 0
    capsys.readouterr()
    with connect() as session, session.open("m"):  # of a client that records nothing
        pass
    assert main(["trace", "m", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert names_of(told)["serve open"]["role"] == "daemon"

    def recorded() -> list[str]:
        return [each.roots[0].name for each in read_traces(served / "state" / "trace")]

    wait_until(lambda: {"serve open", "trims trace m"} <= set(recorded()), "the daemon records no open of its own")


def names_of(told: Any) -> dict[str, Any]:
    return {line["name"]: line for line in told["lines"]}


def test_an_open_is_one_tree_of_command_and_daemon(
    daemon: Daemon, checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    register(daemon, checkpoint)
    cold, warm = traced(daemon, capsys, "m", "--place", "cpu"), traced(daemon, capsys, "m", "--place", "cpu")
    by_name = names_of(cold)
    assert {"connect", "open", "ask", "serve open", "resolve", "plan", "fill.cpu", "map", "close"} <= by_name.keys()
    assert by_name["open"]["attributes"]["warm"] is False
    assert by_name["fill.cpu"]["parent_id"] == by_name["serve open"]["span_id"]
    assert by_name["serve open"]["parent_id"] == by_name["ask"]["span_id"]
    assert [line["depth"] for line in cold["lines"]].count(0) == 1
    again = names_of(warm)
    assert again["open"]["attributes"]["warm"] is True
    assert "fill.cpu" not in again
    for whole in (cold, warm):
        top = [line["seconds"] for line in whole["lines"] if line["depth"] == 1]
        assert sum(top) == pytest.approx(whole["lines"][0]["seconds"], rel=1e-6), "the parts add up to the whole"


def test_a_cold_request_is_one_tree_of_four_processes(
    daemon: Daemon, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    told = traced(daemon, capsys, "m", "[1.5]")
    by_name = names_of(told)
    assert {"queue", "start predictor", "process", "load model", "import", "predict", "run"} <= by_name.keys()
    roles = {line["role"]: line["pid"] for line in told["lines"] if line["role"]}
    assert roles.keys() >= {"endpoint", "predictor"}
    assert roles["endpoint"] == endpoint.process.pid
    assert roles["predictor"] == by_name["start predictor"]["attributes"]["process.pid"]
    assert len({roles["endpoint"], roles["predictor"], os.getpid()}) == 3
    assert [line["depth"] for line in told["lines"]].count(0) == 1
    assert by_name["serve open"]["parent_id"], "the daemon's part of it hangs below the predictor's open"
    warm = names_of(traced(daemon, capsys, "m", "[1.5]"))
    assert "start predictor" not in warm
    assert warm["run"]["attributes"]["batch_size"] == 1


def test_recorded_traces_are_listed_shown_again_and_exported(
    daemon: Daemon, checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    register(daemon, checkpoint)
    first, second = traced(daemon, capsys, "m"), traced(daemon, capsys, "m")
    assert [each["trace_id"] for each in traced(daemon, capsys, "--list")] == [second["trace_id"], first["trace_id"]]
    assert traced(daemon, capsys, "--last") == second
    assert traced(daemon, capsys, "--id", first["trace_id"][:12]) == first
    traced(daemon, capsys, "--last", "--export", str(tmp_path / "t.json"))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {each["name"] for each in events if each["ph"] == "X"} >= {"open", "serve open"}
    if pytest.importorskip("perfetto", reason="no perfetto"):
        traced(daemon, capsys, "--list", "--export", str(tmp_path / "t.pftrace"))
        assert (tmp_path / "t.pftrace").stat().st_size > 500


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name a model"), (("m", "--last"), "name a model"), (("--last", "--list"), "name a model"),
        (("--id", "ff"), "no trace 'ff'"), (("--last",), "no trace is recorded"), (("m", "--level", "deep"), "--level"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert main(["--runtime-dir", str(daemon.config.runtime_dir), "trace", *arguments]) == 1
    assert words in capsys.readouterr().err


def test_a_request_is_recorded_only_if_its_caller_asks_the_endpoint_for_that(
    daemon: Daemon, endpoint: Endpoint, tmp_path: Path
) -> None:
    import urllib.request

    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [1.5]}]}).encode()
    url = f"http://127.0.0.1:{endpoint.port}/v2/models/m/infer"
    folder = daemon.config.state_dir / "trace"
    for number, state in enumerate(("", "other=1", "other=1,trims=1")):
        context = f"00-{number + 1:032x}-b7ad6b7169203331-01"
        headers = {"traceparent": context, **({"tracestate": state} if state else {})}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
            assert answer.status == 200
    endpoint.end()  # which writes what is left
    assert [each.trace_id for each in read_traces(folder)] == [f"{3:032x}"]


def test_perfetto_has_a_cold_request_of_five_processes_joined(
    served: Path, checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("perfetto", reason="no perfetto")
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    path = checkpoint("m", {"factor": np.array([2.0])})
    (served / "m.yaml").write_text(
        f"name: m\nartifact: {{path: {path}}}\npredictor: {{function: 'own_functions:scale'}}\n"
        "inputs: [{name: x, dtype: FP64, shape: [-1]}]\n"
    )
    assert main(["add", str(served / "m.yaml"), "--lazy"]) == 0
    endpoint = Endpoint(served / "run", "--isolation", "process")
    try:
        assert main(["trace", "m", "[1.5]", "--export", str(served / "t.pftrace"), "--json"]) == 0
    finally:
        endpoint.end()
    told = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert {line["role"] for line in told["lines"]} >= {"command", "endpoint", "template", "predictor", "daemon"}
    packets = Trace.FromString((served / "t.pftrace").read_bytes()).packet
    tracks = [each.track_descriptor for each in packets if each.HasField("track_descriptor")]
    processes = {each.process.process_name: each.process.pid for each in tracks if each.HasField("process")}
    assert processes.keys() >= {"command", "endpoint", "template", "predictor", "daemon"}
    assert len(set(processes.values())) == len(processes)
    begun, ended = ([each for each in packets if each.track_event.type == kind] for kind in (1, 2))
    assert len(begun) == len(ended) == sum(line["name"] != "unattributed" for line in told["lines"])
    by_track = {each.uuid: each for each in tracks}
    flows: dict[int, set[int]] = {}
    for each in begun:
        for flow in each.track_event.flow_ids:
            track = by_track[each.track_event.track_uuid]
            flows.setdefault(flow, set()).add(by_track[track.parent_uuid].process.pid)
    joined = {processes["command"]}
    while more := {pid for pids in flows.values() if pids & joined for pid in pids} - joined:
        joined |= more
    assert joined == set(processes.values()), "flows lead from the command to each process"
