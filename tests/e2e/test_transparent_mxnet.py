"""MXNet's own load functions read from shared memory: what runs in its environment is in `mxnet_modules_side.py`."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from programs import DEADLINE_S, FORKED
from repository import ROOT, SUPPORT
from serving import Serving, serving_in

if TYPE_CHECKING:
    from programs import Programs

    from trims.daemon.main import Daemon

MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))
SCRIPT = SUPPORT / "mxnet_modules_side.py"
CHECKS = [
    line.removeprefix("def ").partition("(")[0]
    for script in (SCRIPT, SUPPORT / "mxnet_loaders_side.py")
    for line in script.read_text().splitlines()
    if line.startswith("def check_")
]
pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(not MXNET_PYTHON.exists(), reason="no MXNet environment: make mxnet-env"),
    pytest.mark.timeout(300),
]
_APP = """
import sys, time
import mxnet
for _ in range(2):
    graph, arguments, states = mxnet.model.load_checkpoint(sys.argv[1], 0)
    time.sleep(0.5)
module = mxnet.mod.Module(graph, label_names=None, context=mxnet.cpu())
module.bind(for_training=False, data_shapes=[("data", (2, 3, 16, 16))])
module.set_params(arguments, states)
module.forward(mxnet.io.DataBatch([mxnet.nd.ones((2, 3, 16, 16))]), is_train=False)
print(float(module.get_outputs()[0].sum().asscalar()).hex())
"""


def started(runtime_dir: Path, what: str, path: Path, **environment: str) -> subprocess.Popen[str]:
    """Start the script in MXNet's environment."""
    paths = os.pathsep.join((os.fspath(ROOT), os.fspath(ROOT / "client")))
    environment = {**os.environ, "PYTHONPATH": paths, "TRIMS_RUNTIME_DIR": str(runtime_dir), **environment}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([MXNET_PYTHON, SCRIPT, what, path], text=True, env=environment, **pipes)  # type: ignore[call-overload, no-any-return]


def in_mxnet(runtime_dir: Path, what: str, path: Path, **environment: str) -> Any:
    """Run the script in MXNet's environment. Return its result."""
    return result(started(runtime_dir, what, path, **environment))


def result(process: subprocess.Popen[str]) -> Any:
    """Return what the script prints last; MXNet writes before it."""
    try:
        output, error = process.communicate("\n", timeout=200)
    finally:
        process.kill()
    assert process.returncode == 0, error
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module", params=["1", "0"], ids=["oneDNN", "without oneDNN"])
def outcome(module_daemon: Serving, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    folder, runtime_dir = tmp_path_factory.mktemp("mxnet"), module_daemon.config.runtime_dir
    return in_mxnet(runtime_dir, "check", folder, MXNET_MKLDNN_ENABLED=request.param)


@pytest.mark.parametrize("check", CHECKS, ids=[name.removeprefix("check_") for name in CHECKS])
def test_mxnet_loads_through_the_store_what_it_loads_alone(outcome: dict[str, str | None], check: str) -> None:
    assert outcome[check] is None, outcome[check]


def test_all_checks_were_run(outcome: dict[str, str | None]) -> None:
    assert sorted(outcome) == sorted(CHECKS)
    assert len(CHECKS) > 12


def test_weights_that_onednn_reordered_stay_as_they_were_for_others(daemon: Daemon, tmp_path: Path) -> None:
    path = Path(in_mxnet(daemon.config.runtime_dir, "checkpoint", tmp_path) + "-0000.params")
    before = path.read_bytes()
    one, other = (in_mxnet(daemon.config.runtime_dir, "bytes", path) for _ in range(2))
    assert (one["shared"], other["shared"]) == (1, 1)
    assert one["written"] > 0
    assert other == one
    assert path.read_bytes() == before


def test_without_a_daemon_mxnet_loads(tmp_path: Path) -> None:
    prefix = in_mxnet(tmp_path, "checkpoint", tmp_path)
    found = in_mxnet(tmp_path, "bytes", Path(prefix + "-0000.params"))
    assert (found["shared"], found["reasons"]) == (0, ["daemon_away"])


def test_a_daemon_that_ends_between_a_load_and_its_use_changes_nothing(folder: Path, tmp_path: Path) -> None:
    with serving_in(folder, TRIMS_CPU_CAPACITY_BYTES="256MiB", TRIMS_GPUS="none") as serving:
        daemon, runtime_dir = serving.start(), serving.config.runtime_dir
        process = started(runtime_dir, "orphan", Path(in_mxnet(runtime_dir, "checkpoint", tmp_path)))
        assert process.stdout is not None
        assert any(line == "loaded\n" for line in process.stdout)
        daemon.kill()
        daemon.wait()
        assert result(process) == {"shared": 1, "equal": True}


def test_a_program_of_mxnet_that_exec_starts_answers_the_same(programs: Programs, tmp_path: Path) -> None:
    prefix = in_mxnet(tmp_path, "checkpoint", tmp_path)
    programs.write("app.py", _APP)
    time.sleep(2.1)  # the program's own clock decides when a write is long ago
    words = (str(MXNET_PYTHON), "app.py", prefix)
    programs.env["TRIMS_TRANSPARENT_REPORT"] = "1"
    alone = programs.alone(*words)
    assert alone.returncode == 0, alone.stderr
    until_s = time.monotonic() + DEADLINE_S
    while True:
        ended = programs.run(*words, options=("--why", "--loaders"))
        assert (ended.returncode, ended.stdout) == (0, alone.stdout)
        if "mxnet.nd.load: 2 from shared memory" in ended.stderr:
            break
        assert time.monotonic() < until_s, ended.stderr
    assert FORKED in ended.stderr
