"""Programs of ours started in a folder full of modules that anybody could have put there: none of them is run."""

# fault (code): a `queue.py` lies in the folder of a start -> nothing; it is not run

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from endpoints import is_gone
from looking import wait_until

from trims.core.units import format_bytes
from trims.memory.cuda.api import Device
from trims.testing.fake_cuda import make_devices
from trims.wire.endpoint_file import read_address

if TYPE_CHECKING:
    from collections.abc import Iterator

TRIMS = str(Path(sys.executable).parent / "trims")
WAIT_S = 120
_SHADOW = "with open({mark!r}, 'a') as file:\n    file.write(__name__ + '\\n')\nraise ImportError('not yours')\n"
#: Larger than what the endpoint reads in its own loop.
ROWS = 300_000
MODEL = """
name: doubled
framework: {{name: numpy}}
artifact: {{path: {path}}}
predictor: {{function: "double:double"}}
"""
CODE = "def double(weights, inputs):\n    return {'y': inputs['x'] * 2}\n"
FALLBACK = (
    "import sys, trims\nwith trims.open_file(sys.argv[1], fallback='load') as weights:\n    print(weights.shared)\n"
)
KEEPER = """
import pathlib, sys
from trims.keeper.client import KeeperConnection
from trims.keeper.launch import find_keeper
with KeeperConnection(find_keeper(pathlib.Path(sys.argv[1]), sys.argv[2], cuda=sys.argv[3], idle_s=0.0)) as keeper:
    keeper.hello()
    keeper.end()
"""


class Hostile:
    """A folder with a module of each name that a child might import.

    Attributes:
        path: The folder, for the working folder of programs.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "hostile"
        self._mark = folder / "run-modules"
        self.path.mkdir()
        names = set(sys.stdlib_module_names) | set(importlib.metadata.packages_distributions())
        for name in names | {"trims", "trims_client", "trims_predictors", "sitecustomize", "usercustomize"}:
            (self.path / f"{name}.py").write_text(_SHADOW.format(mark=str(self._mark)))

    def run(self, *command: str, status: int = 0, **variables: str) -> str:
        """Run a program in the folder; returns what it printed."""
        done = subprocess.run(
            command, cwd=self.path, capture_output=True, text=True, timeout=WAIT_S, env={**os.environ, **variables}
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    def were_run(self) -> list[str]:
        """Names of the modules that a program has imported."""
        return self._mark.read_text().split() if self._mark.exists() else []


@pytest.fixture
def hostile(folder: Path) -> Hostile:
    return Hostile(folder)


@pytest.fixture
def runtime_dir(hostile: Hostile, folder: Path) -> Iterator[str]:
    """Folder of a daemon with an endpoint; both were started in the hostile folder."""
    at = str(folder / "run")
    command = [TRIMS, "--runtime-dir", at, "serve", "--state-dir", str(folder / "state"), "--gpus", "none"]
    command += ["--endpoint", "yes", "--endpoint-flags", "--port 0 --grpc-port none --preload torch"]
    command += ["--cpu-capacity-bytes", "64MiB", "--cpu-memory", "memfd"]
    with (folder / "log").open("w") as log, subprocess.Popen(command, cwd=hostile.path, stderr=log) as process:
        try:
            wait_until(lambda: process.poll() is not None or read_address(at) is not None, "the endpoint serves")
            assert process.poll() is None, (folder / "log").read_text()
            yield at
        finally:
            found = read_address(at)
            process.terminate()
            process.wait(WAIT_S)
    if found is not None:
        wait_until(lambda: is_gone(found.pid), "the endpoint ends with its daemon")


def infer(runtime_dir: str, model: str, x: list[float]) -> Any:
    found = read_address(runtime_dir)
    assert found is not None
    body = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [len(x)], "data": x}]}
    request = urllib.request.Request(f"{found.url}/v2/models/{model}/infer", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.load(answer)["outputs"][0]["data"]
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


def test_the_daemon_and_its_children_run_no_module_of_the_working_folder(
    hostile: Hostile, runtime_dir: str, folder: Path
) -> None:
    checkpoint = folder / "doubled.pt"
    torch.save({"w": torch.zeros(3_000_000)}, checkpoint)
    (folder / "double.py").write_text(CODE)
    (folder / "doubled.yaml").write_text(MODEL.format(path=checkpoint))
    hostile.run(TRIMS, "--runtime-dir", runtime_dir, "add", str(folder / "doubled.yaml"))
    hostile.run(TRIMS, "--runtime-dir", runtime_dir, "load", "doubled", "--place", "cpu")
    assert infer(runtime_dir, "doubled", [1.5]) == [3.0]
    assert infer(runtime_dir, "doubled", [0.25] * ROWS) == [0.5] * ROWS  # read and written by the JSON process
    assert format_bytes(12_000_000).split()[0] in hostile.run(TRIMS, "--runtime-dir", runtime_dir, "ps")
    assert hostile.were_run() == []


def test_a_private_load_without_a_daemon_runs_no_module_of_the_working_folder(hostile: Hostile, folder: Path) -> None:
    checkpoint, script = folder / "m.pt", folder / "program" / "load.py"
    script.parent.mkdir()
    torch.save({"w": torch.zeros(10)}, checkpoint)
    script.write_text(FALLBACK)
    absent = {"TRIMS_RUNTIME_DIR": str(folder / "absent"), "TRIMS_STATE_DIR": str(folder / "state")}
    assert hostile.run(sys.executable, str(script), str(checkpoint), **absent).startswith("False\n")
    assert hostile.were_run() == []


def test_a_keeper_runs_no_module_of_the_working_folder(hostile: Hostile, folder: Path) -> None:
    script, uuid = folder / "program" / "find.py", "GPU-00000000-0000-0000-0000-000000000001"
    script.parent.mkdir()
    script.write_text(KEEPER)
    kind = make_devices(folder, [Device(uuid, "Fake", 64 << 20)])
    hostile.run(sys.executable, str(script), str(folder), uuid, kind)
    assert hostile.were_run() == []


def test_making_an_environment_runs_no_module_of_the_working_folder(hostile: Hostile, folder: Path) -> None:
    (folder / "wheels").mkdir()
    words = ["env", "create", "absent-package==1", "--environments-dir", str(folder / "environments")]
    words += ["--no-index", "--find-links", str(folder / "wheels")]
    assert "absent-package" in hostile.run(TRIMS, *words, status=1)
    assert hostile.were_run() == []
