"""Every program in examples/ runs against a real daemon and says what its docstring promises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import wait_until
from repository import ROOT
from safetensors.numpy import save_file
from trims_client import connect
from trims_client.weights import Weights

from trims.control import admin
from trims.core.errors import ArtifactNotFoundError, DaemonAwayError, ManifestError, ModelNotFoundError
from trims.core.place import CPU

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims_client import Session

    from trims.control import Admin
    from trims.daemon.main import Daemon

MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))
EXAMPLES = ROOT / "examples"
PLUGIN = EXAMPLES / "policy_plugin"
MOST_LINES = 40
WAIT_S = 100


def run(program: str, artifact: Path, daemon: Daemon, python: str = sys.executable) -> str:
    """Run an example program and return its output."""
    environment = {**os.environ, "TRIMS_RUNTIME_DIR": str(daemon.config.runtime_dir)}
    command = [python, str(EXAMPLES / program), str(artifact)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture
def linear(folder: Path) -> Path:
    """The weights of a linear layer whose answer to ones is known: 4 * (8 + 1)."""
    path = folder / "linear.safetensors"
    save_file({"weight": np.ones((4, 8), np.float32), "bias": np.ones(4, np.float32)}, path)
    return path


def test_every_program_is_short_and_run_by_a_test_here() -> None:
    programs = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert len(programs) >= 6
    tested = Path(__file__).read_text()
    for name in programs:
        assert f'"{name}"' in tested, f"{name} is run by no test"
        assert len((EXAMPLES / name).read_text().splitlines()) <= MOST_LINES, name
        assert f"`{name} FILE`" in (EXAMPLES / "README.md").read_text()


def test_arrays(daemon: Daemon, linear: Path) -> None:
    told = run("numpy_arrays.py", linear, daemon)
    assert "weight: float32 (4, 8), sum 32" in told
    assert "loaded now" in told
    assert "resident before" in run("numpy_arrays.py", linear, daemon)


def test_a_torch_module(daemon: Daemon, linear: Path) -> None:
    pytest.importorskip("torch")
    assert run("torch_module.py", linear, daemon) == "answer 36\n"


def test_an_onnxruntime_session(daemon: Daemon, folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    weight = numpy_helper.from_array(np.ones((8, 4), np.float32), "weight")
    given = helper.make_tensor_value_info("given", onnx.TensorProto.FLOAT, [1, 8])
    answer = helper.make_tensor_value_info("answer", onnx.TensorProto.FLOAT, [1, 4])
    node = helper.make_node("MatMul", ["given", "weight"], ["answer"])
    graph = helper.make_graph([node], "linear", [given], [answer], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "m.onnx")
    assert run("onnxruntime_session.py", folder / "m.onnx", daemon) == "answer 32\n"


@pytest.mark.mxnet
@pytest.mark.skipif(not MXNET_PYTHON.exists(), reason="no MXNet environment: make mxnet-env")
def test_an_mxnet_executor(daemon: Daemon, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = (
        "import mxnet as mx; value = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=4, name='dense');"
        "ones = {'dense_weight': mx.nd.ones((4, 8)), 'dense_bias': mx.nd.ones(4)};"
        f"mx.model.save_checkpoint({str(folder / 'm')!r}, 0, value, ones, {{}})"
    )
    subprocess.run([str(MXNET_PYTHON), "-c", save], check=True, capture_output=True, timeout=WAIT_S)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "client")]))
    told = run("mxnet_executor.py", folder / "m-symbol.json", daemon, python=str(MXNET_PYTHON))
    assert told.splitlines()[-1] == "answer 36"


def test_a_function_handler(daemon: Daemon, linear: Path) -> None:
    told = run("function_handler.py", linear, daemon)
    assert told == "{'tensor': 'weight', 'mean': 1.0}\n{'tensor': 'bias', 'mean': 1.0}\n"


def test_a_function_handler_at_trims_call(daemon: Daemon, linear: Path) -> None:
    with admin(daemon.config.runtime_dir) as control:
        control.add(linear)
    command = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(daemon.config.runtime_dir), "call"]
    words = [str(EXAMPLES / "function_handler.py"), "--model", "linear", "--event", '{"tensor": "bias"}']
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {"tensor": "bias", "mean": 1.0}
    assert done.stderr.startswith("cold: forked; ")


def test_many_processes(daemon: Daemon, linear: Path) -> None:
    told = run("many_processes.py", linear, daemon)
    assert re.search(r"^4 leases of one copy of \d+ bytes; 1 different answer$", told, re.MULTILINE)


def test_an_operator(daemon: Daemon, linear: Path) -> None:
    told = run("operate_daemon.py", linear, daemon)
    assert "example: " in told
    assert "refused: example: the replica at cpu is pinned; unpin it first" in told
    assert "freed at cpu, disk" in told
    assert "first change: first waiter" in told


def test_an_asyncio_program(daemon: Daemon, linear: Path) -> None:
    assert run("asyncio_program.py", linear, daemon) == "serving\n1 size of 10 opens\n"


def install(plugin: Path, folder: Path) -> dict[str, str]:
    """Install a plug-in as a user would, apart, and run its own tests; returns an environment that has it."""
    environment = put_there(plugin, folder)
    suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(plugin), "--rootdir", str(plugin)]
    done = subprocess.run(suite, capture_output=True, text=True, timeout=3 * WAIT_S, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2000:]
    return environment


def put_there(plugin: Path, folder: Path) -> dict[str, str]:
    """Install a plug-in in a folder apart; returns an environment that has it."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--target", str(folder / "site"), str(plugin)]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)
    path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


def test_a_format_plugin_passes_its_contract_and_is_found_by_its_files(folder: Path) -> None:
    environment = install(EXAMPLES / "format_plugin", folder)
    (folder / "m.csv").write_text("# trims matrix 2x3\n1,2,3\n4,5,6\n")
    convert = [sys.executable, "-m", "trims.cli.main", "convert", str(folder / "m.csv"), "-o", str(folder / "image")]
    subprocess.run(convert, check=True, capture_output=True, timeout=WAIT_S, env=environment)
    with Weights.map_file(folder / "image") as weights:
        assert weights["weight"].tolist() == [[1, 2, 3], [4, 5, 6]]


@contextmanager
def serving(environment: dict[str, str], folder: Path, *flags: str) -> Iterator[Admin]:
    """A daemon in a process of its own that has the plug-in; it ends, and keeps its memory, with the block."""
    serve = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(folder / "run"), "serve", "--gpus", "none"]
    process = subprocess.Popen([*serve, "--state-dir", str(folder / "state"), *flags], env=environment)
    try:
        with admin(folder / "run") as daemon:
            wait_for(daemon, process)
            try:
                yield daemon
            except BaseException:
                daemon.shutdown(purge=True)
                raise
    finally:
        process.terminate()
        process.wait(WAIT_S)
    assert process.returncode == 0


def wait_for(daemon: Admin, process: subprocess.Popen[bytes]) -> None:
    """Wait until the daemon answers."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            daemon.status()
        except DaemonAwayError:
            assert process.poll() is None, "the daemon did not come up"
            assert time.monotonic() < until
            time.sleep(0.05)
        else:
            return


def command(environment: dict[str, str], folder: Path, *words: str) -> str:
    """Return both outputs of a command of trims."""
    line = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(folder / "run"), *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


def test_a_policy_plugin_passes_its_contract_and_is_found_by_its_name(folder: Path, linear: Path) -> None:
    environment = install(PLUGIN, folder)
    with serving(environment, folder, "--cpu-policy", "largest") as daemon:
        policies = {tier.place: tier.policy for tier in daemon.status().stats.tiers}
        assert policies[str(CPU)] == "largest"
        daemon.add(linear)
        daemon.shutdown(purge=True)


def test_a_registry_plugin_passes_its_contract_and_serves_a_daemon(folder: Path, linear: Path) -> None:
    environment = install(EXAMPLES / "registry_plugin", folder)
    manifests = folder / "manifests"
    manifests.mkdir()
    flags = ("--registry", f"folder:{manifests}")
    with serving(environment, folder, *flags) as daemon:
        assert "registered linear" in command(environment, folder, "add", str(linear), "--name", "linear")
        assert "name: linear" in (manifests / "linear.yaml").read_text()
        hand = {"name": "by-hand", "artifact": {"path": str(linear)}, "description": "as it was"}
        (manifests / "by-hand.yaml").write_text(json.dumps(hand))
        (manifests / "broken.yaml").write_text("name: [")
        listed = command(environment, folder, "list")
        assert all(name in listed for name in ("linear", "by-hand"))
        assert f"broken cannot be read: {manifests}/broken.yaml: is not YAML" in listed
        with connect(folder / "run") as session:
            for name in ("linear", "by-hand"):
                with session.open(name) as weights:
                    assert weights["bias"].tolist() == [1, 1, 1, 1]
            with pytest.raises(ManifestError, match=r"broken\.yaml: is not YAML"):
                session.open("broken")
            other = folder / "other.safetensors"
            save_file({"bias": np.zeros(2, np.float32)}, other)
            (manifests / "by-hand.yaml").write_text(json.dumps({**hand, "artifact": {"path": str(other)}}))
            wait_until(lambda: values(session, "by-hand") == [0, 0], "the edited manifest counts")
            (manifests / "by-hand.yaml").unlink()
            wait_until(lambda: is_unknown(session, "by-hand"), "the removed manifest is gone")
    with serving(environment, folder, *flags) as daemon:
        assert [model.name for model in daemon.models()] == ["broken", "linear"]
        assert "linear" in command(environment, folder, "show", "linear")
        image = str(folder / "image")
        named = {**environment, "TRIMS_REGISTRY": flags[1], "TRIMS_STATE_DIR": str(folder / "state")}
        command(named, folder, "convert", "linear", "-o", image)
        with Weights.map_file(image) as weights:
            assert weights["weight"].shape == (4, 8)
        command(environment, folder, "rm", "linear")
        assert [path.name for path in manifests.iterdir()] == ["broken.yaml"]
        daemon.shutdown(purge=True)


def test_a_source_plugin_passes_its_contract_and_is_fetched_from(folder: Path, linear: Path) -> None:
    environment = install(EXAMPLES / "source_plugin", folder)
    with serving(environment, folder) as daemon:
        assert "success" in command(environment, folder, "pull", f"share://{linear}")
        linear.unlink()
        with connect(folder / "run") as session, session.open("linear") as weights:
            assert weights["bias"].tolist() == [1, 1, 1, 1]
        with pytest.raises(ArtifactNotFoundError):
            daemon.add(f"share://{folder}/nothing.safetensors")
        daemon.shutdown(purge=True)


def values(session: Session, name: str) -> object:
    """A model's biases."""
    with session.open(name) as weights:
        return weights["bias"].tolist()


def is_unknown(session: Session, name: str) -> bool:
    """Return whether no model has the name."""
    try:
        session.open(name).close()
    except ModelNotFoundError:
        return True
    return False


def test_a_plugin_that_cannot_be_opened_ends_the_daemon_with_its_name(folder: Path) -> None:
    environment = put_there(EXAMPLES / "registry_plugin", folder)
    serve = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(folder / "run"), "serve", "--gpus", "none"]
    serve += ["--state-dir", str(folder / "state")]
    for flag, choice, said in (
        (
            "registry",
            "folder:/none",
            r"plug-in 'folder' \(manifest_folder:open_folder\) cannot be opened: folder:/none",
        ),
        ("registry", "etcd", "there is no registry 'etcd'; known are folder, sqlite"),
    ):
        line = [*serve, f"--{flag}", choice, *("--cpu-capacity-bytes=1MiB", "--disk-capacity-bytes=1MiB")]
        done = subprocess.run(line, capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment)
        assert done.returncode == 1
        assert re.search(rf"^trims: .*{said}", done.stderr, re.MULTILINE)
        assert "Traceback" not in done.stderr
