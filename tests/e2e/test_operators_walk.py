"""Walk of an operator from an empty folder on: add a model by its path, restart, and upgrade under load."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from looking import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = [sys.executable, "-m", "trims.cli.main"]
BODY = {"inputs": [{"name": "x", "shape": [1, 32], "datatype": "FP32", "data": [1.0] * 32}]}
#: An answer of another model, or a file named beside its path, would have other numbers.
RIGHT = [float(sum(64 * row + column for row in range(32)) + column) for column in range(64)]
#: A model that runs until its process is ended.
RUNS_ON = """
import time
class RunsOn:
    def load(self, weights, context): pass
    def predict(self, inputs):
        print("it runs", flush=True)
        time.sleep(100)
    def unload(self): pass
    def inputs(self): return []
    def outputs(self): return []
"""


class Machine:
    """A folder, a port, and `trims` with both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TRIMS_")},
            "TRIMS_RUNTIME_DIR": str(folder / "run"),
            "TRIMS_STATE_DIR": str(folder / "state"),
            "TRIMS_CPU_CAPACITY_BYTES": "16MiB",
            "TRIMS_GPUS": "none",
            "TRIMS_ENDPOINT": "yes",
            "TRIMS_ENDPOINT_FLAGS": f"--port {self.port} --grpc-port none",
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def serve(self) -> subprocess.Popen[bytes]:
        """Start the daemon; it may have to wait for the last one."""
        with (self.folder / "log").open("a") as log:
            self.running.append(subprocess.Popen([*COMMAND, "serve"], env=self.environment, stderr=log))
        return self.running[-1]

    def trims(self, *words: object) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, *map(str, words)]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=300)

    def done(self, *words: object) -> str:
        """Run a command that must succeed; returns what it printed."""
        done = self.trims(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def ask(self, model: str = "linear") -> tuple[str, Any]:
        """Send one request: return `answered`, `told` to try again, or `failed`, and what came."""
        url = f"http://127.0.0.1:{self.port}/v2/models/{model}/infer"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, json.dumps(BODY).encode()), timeout=120) as answer:
                return "answered", json.loads(answer.read())["outputs"][0]["data"]
        except urllib.error.HTTPError as error:
            with error:
                told = error.code == 503 and "Retry-After" in error.headers
                return "told" if told else "failed", (error.code, error.read())
        except urllib.error.URLError as error:  # a port without a listener: no client takes that for an answer
            return "told" if isinstance(error.reason, ConnectionRefusedError) else "failed", error.reason
        except OSError as error:
            return "failed", error

    def answers(self) -> bool:
        return self.ask() == ("answered", RIGHT)


@pytest.fixture
def machine(folder: Path) -> Iterator[Machine]:
    made = Machine(folder)
    yield made
    made.trims("shutdown", "--purge")
    for process in made.running:
        process.kill()
        process.wait()


def load(machine: Machine, over: threading.Event, seen: list[tuple[str, Any]]) -> None:
    while not over.is_set():
        kind, what = machine.ask()
        seen.append(("failed", what) if kind == "answered" and what != RIGHT else (kind, what))


@pytest.mark.usefixtures("own_files")
def test_an_upgrade_under_load_fails_no_request_that_was_not_told_to_try_again(machine: Machine) -> None:
    from onnx_files import linear

    path = linear(machine.folder)
    machine.serve()
    wait_until(lambda: machine.trims("status").returncode == 0, "the daemon answers")
    machine.done("add", path)
    wait_until(machine.answers, "a model that was added by its path is served")
    machine.done("shutdown")
    machine.serve()
    wait_until(machine.answers, "the same model is served after a restart, without a word")

    over, seen = threading.Event(), list[tuple[str, Any]]()
    clients = [threading.Thread(target=load, args=(machine, over, seen)) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        for _ in range(3):
            before = machine.running[-1]
            machine.done("shutdown")
            assert before.wait(0) == 0
            machine.serve()
            answered = sum(kind == "answered" for kind, _ in seen)
            wait_until(lambda least=answered + 20: sum(k == "answered" for k, _ in seen) >= least, "it answers again")  # type: ignore[misc]
    finally:
        over.set()
        for client in clients:
            client.join()
    assert [what for kind, what in seen if kind == "failed"] == []
    assert {kind for kind, _ in seen} == {"answered", "told"}


def test_requests_that_run_may_finish_and_are_failed_by_a_second_signal(machine: Machine) -> None:
    from onnx_files import linear

    (machine.folder / "runs_on.py").write_text(RUNS_ON)
    manifest = {
        "name": "runs_on",
        "artifact": {"path": str(linear(machine.folder))},
        "predictor": {"call": "runs_on:RunsOn"},
    }
    (machine.folder / "runs_on.yaml").write_text(json.dumps(manifest))
    process = machine.serve()
    wait_until(lambda: machine.trims("status").returncode == 0, "the daemon answers")
    machine.done("add", machine.folder / "runs_on.yaml")
    seen: list[tuple[str, Any]] = []
    wait_until(lambda: machine.ask("missing")[0] == "failed", "the endpoint answers")
    client = threading.Thread(target=lambda: seen.append(machine.ask("runs_on")))
    client.start()
    wait_until(lambda: "it runs" in (machine.folder / "log").read_text(), "the model runs")
    shutdown = subprocess.Popen([*COMMAND, "shutdown"], env=machine.environment, stderr=subprocess.PIPE, text=True)
    assert shutdown.stderr is not None
    assert "waits for requests that run" in shutdown.stderr.readline()
    assert machine.done("status").startswith("ending: ")
    assert (machine.ask("runs_on")[0], shutdown.poll(), process.poll()) == ("told", None, None)
    process.terminate()
    client.join(60)
    assert seen[0][0] == "told"
    assert shutdown.wait(60) == 0
    assert process.wait(60) == 0
    assert "fail" in (machine.folder / "log").read_text()
    shutdown.stderr.close()
