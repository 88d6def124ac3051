"""Files of the checkout that benchmarks need: manifests, and the environments of MXNet and of others' clients."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import trims_bench
from trims.process.python import run_code

ROOT = Path(trims_bench.__file__).absolute().parents[2]
MANIFESTS = ROOT / "manifests"
#: Variables that name other interpreters than those of the checkout's environments.
MXNET_VARIABLE, CLIENTS_VARIABLE = "TRIMS_MXNET_PYTHON", "TRIMS_CLIENTS_PYTHON"
_IMPORT_TIMEOUT_S = 60


class ClientsMissingError(Exception):
    """Error for a missing interpreter that can import tritonclient; the message says why."""


class MxnetMissingError(Exception):
    """Error for a missing interpreter that can import MXNet; the message says why."""


def mxnet_python() -> Path:
    """The interpreter of the MXNet environment, tried. Raises MxnetMissingError."""
    folder = ROOT / ".venv-mxnet"
    python, reason = Path(os.environ.get(MXNET_VARIABLE, folder / "bin" / "python")), folder / "unavailable"
    if not python.exists() and reason.exists() and MXNET_VARIABLE not in os.environ:
        raise MxnetMissingError(reason.read_text().strip())
    return _tried(python, "MXNet", "mxnet", "make mxnet-env", MxnetMissingError)


def clients_python() -> Path:
    """The interpreter of the environment of clients by others, tried. Raises ClientsMissingError."""
    python = Path(os.environ.get(CLIENTS_VARIABLE, ROOT / ".venv-clients" / "bin" / "python"))
    modules = "tritonclient.grpc, tritonclient.http"
    return _tried(python, "tritonclient", modules, "make clients-env", ClientsMissingError)


def _tried(python: Path, what: str, modules: str, make: str, missing: type[Exception]) -> Path:
    if not python.exists():
        raise missing(f"no environment of {what} at {python}; `{make}` makes it")
    command = run_code(f"import {modules}", python=python)
    tried = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_IMPORT_TIMEOUT_S)
    if tried.returncode != 0:
        last = (tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"])[-1]
        raise missing(f"{python} cannot import {what}: {last}")
    return python


def packages_path() -> str:
    """PYTHONPATH with which another interpreter finds this checkout's packages, and nothing else of ours."""
    folders = (ROOT, *(ROOT / name for name in ("client", "predictors", "bench")))
    return os.pathsep.join(map(os.fspath, folders))
