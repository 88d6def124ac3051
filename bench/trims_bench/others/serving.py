"""Makes the environment of other servers, and runs one of them at a time."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims.process.python import run_module
from trims_bench.child import end, environment
from trims_bench.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_INSTALL_S = 600.0
_START_S = 60.0
_END_S = 10.0
_POLL_S = 0.05
_TAIL = 500


class OtherMissingError(Exception):
    """A server cannot be installed, or does not start; the message says why."""


@dataclass(frozen=True, slots=True)
class Other:
    """One server.

    Attributes:
        path: Where it takes requests for the model `dense`.
        speaks_v2: Whether it takes those of the Open Inference Protocol; else `{"x": ...}` for `{"y": ...}`.
        command: Makes the command from Python's path, a folder of its own, the weights and a port.
        shares: Whether it has the packages of this environment beside its own: both sides run the same framework.
    """

    name: str
    requirements: Sequence[str]
    path: str
    speaks_v2: bool
    command: Callable[[Path, Path, Path, int], Sequence[str]]
    shares: bool = False


def _litserve(python: Path, folder: Path, weights: Path, port: int) -> Sequence[str]:
    del folder
    return run_module("trims_bench.others.litserve_app", str(weights), str(port), python=python)


def _litserve_folder(python: Path, folder: Path, weights: Path, port: int) -> Sequence[str]:
    del folder
    return run_module("trims_bench.others.litserve_folder", str(weights), str(port), python=python)


def _mlserver(python: Path, folder: Path, weights: Path, port: int) -> Sequence[str]:
    ports = {"http_port": port, "grpc_port": free_port(), "metrics_port": free_port()}
    settings = {"host": "127.0.0.1", "parallel_workers": 1, "debug": False, "metrics_endpoint": None, **ports}
    model = {"name": "dense", "implementation": "trims_bench.others.mlserver_app.Dense"}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps({**model, "parameters": {"uri": str(weights)}}))
    return [str(python.with_name("mlserver")), "start", str(folder)]


LITSERVE = Other("LitServe", ("litserve==0.2.19", "numpy"), "/predict", False, _litserve)
#: LitServe with the folder of a Hugging Face model for weights.
LITSERVE_FOLDER = Other("LitServe", ("litserve==0.2.19",), "/predict", False, _litserve_folder, shares=True)
#: MLServer with an older uvloop: with a newer one the workers of MLServer 1.7.1 end as they begin.
MLSERVER = Other("MLServer", ("mlserver==1.7.1", "uvloop<0.22"), "/v2/models/dense/infer", True, _mlserver)


def free_port() -> int:
    """One that no program listens on at this moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def install(other: Other, folder: Path) -> Path:
    """Put a server into the environment in a folder, with uv if it is there, else with pip.

    Returns:
        The environment's Python.

    Raises:
        OtherMissingError: The server cannot be had here.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        _do([sys.executable, "-m", "venv", str(folder)], other)
    uv = shutil.which("uv")
    tool = [uv, "pip", "install", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
    _do([*tool, "--quiet", *other.requirements], other)
    if other.shares:
        folder_of = f"python{sys.version_info.major}.{sys.version_info.minor}"
        path = folder / "lib" / folder_of / "site-packages" / "shared.pth"
        path.write_text(f"{sysconfig.get_path('purelib')}\n")
    return python


def _do(command: Sequence[str], other: Other) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired as error:
        raise OtherMissingError(f"{other.name} was not installed within {_INSTALL_S:g} s") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"exit status {error.returncode}"])[-1]
        raise OtherMissingError(f"{other.name} cannot be installed: {last[-_TAIL:]}") from error


@contextlib.contextmanager
def serving(other: Other, python: Path, folder: Path, weights: Path, workers: int = 1) -> Iterator[str]:
    """A server for the length of a `with` block; yields the URL that takes requests. Raises OtherMissingError.

    Args:
        weights: File or folder of its model.
        workers: Processes that answer, where the server takes a number; they divide the processors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            other.command(python, folder, weights, port),
            cwd=folder,
            env={**_environment(), "WORKERS": str(workers)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        _await(process, port, other, log)
        yield f"http://127.0.0.1:{port}{other.path}"
    finally:
        end(process, _END_S)  # its workers must not outlive it


def _environment() -> Mapping[str, str]:
    """Only what a model's module needs of ours; one thread of numpy's, as predictors have it."""
    return {**environment(), "PYTHONPATH": str(ROOT / "bench"), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _await(process: subprocess.Popen[bytes], port: int, other: Other, log: Path) -> None:
    until = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < until:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/v2/health/ready" if other.speaks_v2 else "/health")
            if connection.getresponse().status == http.client.OK:
                return
        time.sleep(_POLL_S)
    words = log.read_text(errors="replace").strip()[-_TAIL:]
    status = process.poll()
    what = f"did not start within {_START_S:g} s" if status is None else f"ended with status {status} as it started"
    raise OtherMissingError(f"{other.name} {what}; it said: {words or 'nothing'}")
