"""Logs of a whole service: every line has its time and level, and names the model and the request where it can."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from looking import wait_until

from trims.wire.endpoint_file import read_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COMMAND = [sys.executable, "-m", "trims.cli.main"]
CODE = """
def run(weights, inputs):
    print("it ran")
    return {"y": inputs["x"]}
"""


@pytest.fixture
def service(folder: Path, checkpoint: Callable[..., Path]) -> Iterator[Callable[..., list[str]]]:
    """A service that answers one request; returns its log."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRIMS_")}
    environment["TRIMS_RUNTIME_DIR"] = str(folder / "run")
    (folder / "mine.py").write_text(CODE)
    manifest = {"name": "m", "artifact": {"path": str(checkpoint("m"))}, "predictor": {"function": "mine:run"}}
    (folder / "m.yaml").write_text(json.dumps(manifest))
    running: list[subprocess.Popen[bytes]] = []

    def trims(*words: str) -> None:
        subprocess.run([*COMMAND, *words], env=environment, check=True, capture_output=True, timeout=120)

    def url() -> str:
        found = read_address(str(folder / "run"))
        return "" if found is None else found.url

    def run(*flags: str, **variables: str) -> list[str]:
        given = ["--state-dir", str(folder / "state"), "--gpus", "none", "--cpu-capacity-bytes", "1MiB"]
        given += ["--endpoint", "yes", "--endpoint-flags", "--port 0 --grpc-port none --access-log"]
        with (folder / "log").open("w") as log:
            command = [*COMMAND, "serve", *given, *flags]
            running.append(subprocess.Popen(command, env={**environment, **variables}, stderr=log))
        wait_until(url, "the endpoint answers")
        trims("add", str(folder / "m.yaml"))
        body = json.dumps({"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [1]}]}).encode()
        request = urllib.request.Request(f"{url()}/v2/models/m/infer", body, {"X-Request-Id": "mine-7"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert answer.headers["X-Request-Id"] == "mine-7"
        trims("shutdown", "--purge")
        assert running[-1].wait(120) == 0
        return (folder / "log").read_text().splitlines()

    yield run
    for process in running:
        process.kill()
        process.wait()


def test_every_line_of_text_has_its_time_and_level(service: Callable[..., list[str]]) -> None:
    lines = service()
    form = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) [\w. ]+: ")
    assert [line for line in lines if not form.match(line)] == []
    assert any(line.endswith("it ran [model=m request=mine-7]") for line in lines)
    assert any("POST /v2/models/m/infer 200 in" in line and line.endswith("request=mine-7]") for line in lines)


def test_every_line_of_json_is_an_object_and_debug_says_more(service: Callable[..., list[str]]) -> None:
    said = service("--log-format", "json", TRIMS_LOG_LEVEL="debug")
    lines: list[dict[str, Any]] = [json.loads(line) for line in said]
    assert all({"time", "level", "logger", "process", "message"} <= line.keys() for line in lines)
    (ran,) = (line for line in lines if line["message"] == "it ran")
    assert (ran["model"], ran["request"]) == ("m", "mine-7")
    (access,) = (line for line in lines if line.get("path") == "/v2/models/m/infer")
    assert (access["status"], access["request"], access["model"]) == (200, "mine-7", "m")
    debug = [line for line in lines if line["level"] == "debug"]
    assert any("-> sealed" in line["message"] for line in debug), "changes of state"
    assert any("lease" in line["message"] and line.get("model") == "m" for line in debug), "opens"
    assert any("run by process" in line["message"] and line.get("request") == "mine-7" for line in debug), "runs"
