"""Options of `trims eval --scenario`, and the command against servers that misbehave; real models are in tests/e2e."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from load_server import load_server
from trims_bench.cli.eval_scenario import _NAMES, _batched, _repeated, _server
from trims_bench.evaluation.database.evaluations import Evaluations
from trims_bench.evaluation.records import WORKLOAD
from trims_bench.workloads.load import drive
from trims_bench.workloads.result import Workload
from trims_bench.workloads.scenarios import USES
from trims_predictors.tensors import from_array, to_array

from trims.cli.main import main
from trims.core.errors import CallerError, NotSupportedError
from trims.manifests.serving import ANY, ANY_RANK, TensorType

if TYPE_CHECKING:
    from pathlib import Path

    from trims_bench.workloads.order import Order


def run(port: int, *arguments: str) -> int:
    return main(["eval", *arguments, "--endpoint", f"http://127.0.0.1:{port}"])


def result(capsys: pytest.CaptureFixture[str]) -> Workload:
    found: Any = json.loads(capsys.readouterr().out)
    return Workload.from_json(found["workload"])


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'evaluations.db'}"
    monkeypatch.setenv("TRIMS_EVALUATIONS", url)
    return url


def test_the_command_knows_every_scenario() -> None:
    assert set(_NAMES) == set(USES)


def test_a_load_on_a_running_endpoint_is_reported_as_text_and_as_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    load = "--scenario", "poisson", "--rate", "500", "--requests", "50"
    with load_server("--cold", "1") as port:
        assert run(port, "m", "n", *load, "--popularity", "zipf:2", "--json") == 0
        found = result(capsys)
        assert run(port, "m", *load) == 0
    assert (found.answered, [each.model for each in found.models]) == (50, ["m", "n"])
    assert found.models[0].requests > found.models[1].requests
    text = capsys.readouterr().out
    assert "answered: 50" in text
    assert "sent late (> 1 ms)" in text


def test_a_load_is_kept_and_reported_again(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with load_server() as port:
        assert run(port, "m", "--scenario", "closed", "--requests", "20", "--id", "first") == 0
    told = capsys.readouterr().out
    with Evaluations(database) as kept:
        found = kept.read("first")
        assert [(each.id, each.scenario, each.ended) for each in kept.summaries()] == [("first", "closed", True)]
    assert found.order.scenario["concurrency"] == 8
    assert Workload.from_json(found.documents[WORKLOAD][0]).answered == 20
    assert main(["report", "first"]) == 0
    assert told.splitlines()[2] in capsys.readouterr().out
    assert main(["report", "first", "--html", str(tmp_path / "r.html")]) == 0
    assert "closed: " in (tmp_path / "r.html").read_text()


def test_progress_is_printed_as_lines_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with load_server() as port:
        assert run(port, "m", "--scenario", "poisson", "--rate", "500", "--requests", "30", "--json-lines") == 0
        last = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert last == {"done": 30, "total": 30}
    with load_server("--refuse-after", "100") as port:
        search = "--scenario", "max-rate", "--bound-ms", "60000", "--percentile", "50", "--rate", "200"
        assert run(port, "m", *search, "--duration", "0.01", "--json-lines") == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["probe"] for each in told[:1]] == [{"rate": 200.0, "held": True}]


def test_inputs_of_the_user_are_sent_and_batches_have_rows(capsys: pytest.CaptureFixture[str]) -> None:
    with load_server() as port:
        assert run(port, "m", "--scenario", "batched", "--requests", "3", "--input", "[1.5]", "--json") == 0
    assert result(capsys).options["batch"] == 8


@pytest.mark.parametrize(
    "arguments",
    [
        ("m", "--rate", "5"), ("m", "--endpoint", "http://127.0.0.1:1"), ("--scenario", "closed"),
        ("m", "m", "--scenario", "closed"), ("m", "--scenario", "closed", "--rate", "5"),
        ("m", "--scenario", "poisson"), ("m", "--scenario", "closed", "--repeat", "3"),
        ("m", "--scenario", "closed", "--from", "cpu"), ("m", "n", "--scenario", "closed", "--input", "1"),
        ("m", "--scenario", "closed", "--token-file", "x"), ("m", "--scenario", "closed", "--endpoint", "nowhere"),
        ("m", "--scenario", "closed", "--endpoint", "http://127.0.0.1:1"),
        ("m", "--scenario", "closed", "--resume", "x"), ("m", "--scenario", "batched", "--batch", "1,2"),
        ("m", "--scenario", "closed", "--level", "library"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runtime-dir", "/nonexistent/run", "eval", *arguments]) == 1
    assert capsys.readouterr().err.startswith("trims: ")


def test_a_wrong_file_of_arrivals_is_named_with_its_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "cut.csv"
    path.write_text("app,func,end_timestamp,duration\na,f,1,0\na,f,2")
    with load_server() as port:
        assert run(port, "m", "--scenario", "replay", "--arrivals", str(path)) == 1
    assert f"{path}, line 3" in capsys.readouterr().err


def test_a_generator_that_is_killed_is_reported_and_the_command_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(order: Order, watch: Any) -> Any:
        def kill(driven: Any) -> bool:
            with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
                generator = int(file.read().split()[-1])  # the youngest
            os.kill(generator, signal.SIGKILL)
            return bool(watch(driven))

        return drive(order, kill)

    monkeypatch.setattr("trims_bench.workloads.scenarios.drive", killed)
    with load_server() as port:
        assert run(port, "m", "--scenario", "closed", "--duration", "30", "--json") == 1
    found = result(capsys)
    assert found.ended == "the generator was ended by SIGKILL"
    assert found.answered > 0


def test_ctrl_c_reports_what_there_is_and_leaves_nothing_over() -> None:
    with load_server() as port:
        words = "eval", "m", "--scenario", "closed", "--duration", "60", "--endpoint", f"http://127.0.0.1:{port}"
        code = (
            "import os, signal, sys\n"
            "from trims_bench.cli import eval_scenario\n"
            "eval_scenario._progress = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
            "from trims.cli.main import main\n"
            "sys.exit(main(sys.argv[1:]))\n"
        )
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "not the whole load: interrupted" in done.stdout
    assert done.stderr == ""


def test_a_batch_needs_a_free_first_dimension() -> None:
    free = [TensorType("x", "FP32", (ANY, 3)), TensorType("y", "FP32", (ANY_RANK,))]
    assert [each.shape for each in _batched(free, "m", 4)] == [(4, 3), (ANY_RANK,)]
    for shape in ((1, 3), ()):
        with pytest.raises(NotSupportedError):
            _batched([TensorType("x", "FP32", shape)], "m", 4)


def test_one_row_is_repeated_and_another_number_is_refused() -> None:
    assert to_array(_repeated(from_array("x", np.ones((1, 2))), 4)).shape == (4, 2)
    assert to_array(_repeated(from_array("x", np.ones((4, 2))), 4)).shape == (4, 2)
    for wrong in (np.ones((3, 2)), np.array(1.0)):
        with pytest.raises(CallerError):
            _repeated(from_array("x", wrong), 4)


def test_a_url_is_a_server_a_name_and_a_path() -> None:
    server, host, prefix = _server("https://localhost:8443/serving/", "file")
    assert (server.port, server.tls, server.name, server.certificate) == (8443, True, "localhost", "file")
    assert (host, prefix) == ("localhost:8443", "/serving")
    assert _server("http://127.0.0.1", None)[0].port == 80
