"""Where the checkout keeps what benchmarks need: manifests, and MXNet's own environment.

The demo and the benchmarks run from a checkout; an installed wheel has neither.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import trims_bench

ROOT = Path(trims_bench.__file__).absolute().parents[2]
MANIFESTS = ROOT / "manifests"
#: Overrides the checkout's MXNet environment with another interpreter.
MXNET_VARIABLE = "TRIMS_MXNET_PYTHON"
_IMPORT_TIMEOUT_S = 60


class MxnetMissingError(Exception):
    """There is no interpreter that can import MXNet; the message says why."""


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
        [python, "-c", "import mxnet"], capture_output=True, text=True, check=False, timeout=_IMPORT_TIMEOUT_S
    )
    if tried.returncode != 0:
        last = (tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"])[-1]
        raise MxnetMissingError(f"{python} cannot import MXNet: {last}")
    return python
