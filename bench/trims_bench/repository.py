"""Files of the checkout that benchmarks need: manifests, and the environments of MXNet and of others' clients."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import trims_bench
from trims.process.python import run_code

ROOT = Path(trims_bench.__file__).absolute().parents[2]
MANIFESTS = ROOT / "manifests"
#: Overrides the checkout's MXNet environment with another interpreter.
MXNET_VARIABLE = "TRIMS_MXNET_PYTHON"
#: Overrides the environment of clients by others in the same way.
CLIENTS_VARIABLE = "TRIMS_CLIENTS_PYTHON"
_IMPORT_TIMEOUT_S = 60


class ClientsMissingError(Exception):
    """Error for a missing interpreter that can import tritonclient; the message says why."""


class MxnetMissingError(Exception):
    """Error for a missing interpreter that can import MXNet; the message says why."""


def mxnet_python() -> Path:
    """The interpreter of the MXNet environment, tried. Raises MxnetMissingError."""
    folder = ROOT / ".venv-mxnet"
    python = Path(os.environ.get(MXNET_VARIABLE, folder / "bin" / "python"))
    reason = folder / "unavailable"
    if not python.exists():
        if reason.exists() and MXNET_VARIABLE not in os.environ:
            raise MxnetMissingError(reason.read_text().strip())
        raise MxnetMissingError(f"no MXNet environment at {python}; `make mxnet-env` makes it")
    tried = subprocess.run(
        run_code("import mxnet", python=python), capture_output=True, text=True, check=False, timeout=_IMPORT_TIMEOUT_S
    )
    if tried.returncode != 0:
        last = (tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"])[-1]
        raise MxnetMissingError(f"{python} cannot import MXNet: {last}")
    return python


def clients_python() -> Path:
    """The interpreter of the environment of clients by others, tried. Raises ClientsMissingError."""
    python = Path(os.environ.get(CLIENTS_VARIABLE, ROOT / ".venv-clients" / "bin" / "python"))
    if not python.exists():
        raise ClientsMissingError(f"no environment of clients at {python}; `make clients-env` makes it")
    code = "import aiohttp, tritonclient.grpc, tritonclient.http"
    tried = subprocess.run(
        run_code(code, python=python), capture_output=True, text=True, check=False, timeout=_IMPORT_TIMEOUT_S
    )
    if tried.returncode != 0:
        last = (tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"])[-1]
        raise ClientsMissingError(f"{python} cannot import tritonclient and aiohttp: {last}")
    return python


def packages_path() -> str:
    """PYTHONPATH with which another interpreter finds this checkout's packages, and nothing else of ours."""
    folders = (ROOT, *(ROOT / name for name in ("client", "predictors", "bench")))
    return os.pathsep.join(map(os.fspath, folders))
