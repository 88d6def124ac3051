"""Time of a fresh interpreter to read its first weights, over importing numpy, which it needs in any case."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

from trims.process.python import run_code
from trims_bench.checkpoints import write_checkpoint
from trims_bench.figures import Bar, Figure, Samples, share

if TYPE_CHECKING:
    from trims_bench.scenarios.base import Setup

TITLE = "a fresh interpreter: start, connect, open, first tensor as a numpy view, end"
_NUMPY = "import numpy"
_TRIMS = """\
import trims
from trims.process.python import run_code
session = trims.connect()
first = session.open("fresh")["tensor.0"]
assert first.shape and not first.flags.writeable
"""
_WARM_UP = 2


def run(setup: Setup) -> Figure:
    """The two programs in turns."""
    with setup.scratch() as folder, setup.daemon() as daemon:
        path = write_checkpoint(folder / "fresh.safetensors", setup.size(100 << 20, 1 << 20))
        daemon.load(daemon.add({"name": "fresh", "artifact": {"path": str(path)}}))
        ours, theirs = _turns(str(daemon.runtime_dir), setup.repeats(60))
    compared = share("over `import numpy`", ours, theirs, Bar("<=", 1.15))
    return Figure(
        "fresh", TITLE, [compared], ["From the start of the process to its end, bytecode cached on both sides."]
    )


def _turns(runtime_dir: str, count: int) -> tuple[Samples, Samples]:
    from trims_bench.runs import environment

    env = {**environment(), "TRIMS_RUNTIME_DIR": runtime_dir}
    ours, theirs = [], []
    for number in range(count + _WARM_UP):
        taken = _run_ns(_TRIMS, env), _run_ns(_NUMPY, env)
        if number >= _WARM_UP:
            ours.append(taken[0])
            theirs.append(taken[1])
    return Samples("trims", ours), Samples("numpy only", theirs)


def _run_ns(code: str, env: dict[str, str]) -> int:
    began = time.perf_counter_ns()
    subprocess.run(run_code(code), check=True, env=env)
    return time.perf_counter_ns() - began
