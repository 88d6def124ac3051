"""Waits of a client: for a warm open, a fresh interpreter's first weights, and a file that no daemon has seen."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING
from uuid import uuid4

from trims.process.python import run_code
from trims_bench.checkpoints import write_checkpoint
from trims_bench.child import call, environment
from trims_bench.measuring import Bar, Comparison, Figure, Samples, measure, middle, ratio, share
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trims_bench.scenarios.base import Setup

_WARM_UP = 20
_OPEN = "warm open through the attach door, in a process that has opened before"
_FRESH = "a fresh interpreter: start, connect, open, first tensor as a numpy view, end"
_ARRIVAL = "first arrival of a file: from the first call to the first value of one tensor, fresh processes"


# -- a warm open ---------------------------------------------------------------------------------------------------


def warm_opens(setup: Setup) -> Figure:
    """Open a small and a large checkpoint in turns."""
    sizes = {"1 MB": setup.size(1_000_000, 64_000), "4 GB": setup.size(4_000_000_000, 16_000_000)}
    with (
        setup.scratch() as folder,
        setup.daemon(folder / "state", cpu_capacity_bytes=2 * max(sizes.values())) as daemon,
    ):
        for name, nbytes in sizes.items():
            path = write_checkpoint(folder / f"{nbytes}.safetensors", nbytes)
            daemon.load(daemon.add({"name": _model(name), "artifact": {"path": str(path)}}))
        given = {"models": [_model(name) for name in sizes], "count": setup.repeats(2000)}
        found = call(opens, {"runtime_dir": str(daemon.runtime_dir), **given})
    sides = [Samples(f"open {name}", values) for name, values in zip(sizes, found, strict=True)]
    grown = share("4 GB, times 1 MB", sides[1], sides[0], Bar("<=", 1.2))
    compared = [*(middle(f"{side.of}, p50", side, Bar("<=", 0.15)) for side in sides), grown]
    return Figure("open", _OPEN, compared, ["Closing, which also unmaps, is not part of the time."])


def _model(name: str) -> str:
    return name.lower().replace(" ", "-")


def opens(runtime_dir: str, models: list[str], count: int) -> list[list[int]]:
    """Open and close the models in turns; nanoseconds of each open, by model."""
    import trims

    found: list[list[int]] = [[] for _ in models]
    with trims.connect(runtime_dir) as session:
        for number in range(count + _WARM_UP):
            for name, taken in zip(models, found, strict=True):
                began = time.perf_counter_ns()
                weights = session.open(name)
                ended = time.perf_counter_ns()
                weights.close()
                if number >= _WARM_UP:
                    taken.append(ended - began)
    return found


# -- a fresh interpreter -------------------------------------------------------------------------------------------

_FIRST_TENSOR = """\
import trims
from trims.process.python import run_code
session = trims.connect()
first = session.open("fresh")["tensor.0"]
assert first.shape and not first.flags.writeable
"""


def fresh_interpreters(setup: Setup) -> Figure:
    """Run a program that reads weights, and one that only imports numpy, in turns."""
    with setup.scratch() as folder, setup.daemon() as daemon:
        path = write_checkpoint(folder / "fresh.safetensors", setup.size(100 << 20, 1 << 20))
        daemon.load(daemon.add({"name": "fresh", "artifact": {"path": str(path)}}))
        env = {**environment(), "TRIMS_RUNTIME_DIR": str(daemon.runtime_dir)}
        programs = {"trims": _FIRST_TENSOR, "numpy only": "import numpy"}
        ways = {name: lambda code=code: _run(code, env) for name, code in programs.items()}
        found = measure(ways, setup.repeats(60), warm_up=2)
    ours, theirs = (Samples(name, values) for name, values in found.items())
    note = "From the start of the process to its end, bytecode cached on both sides."
    return Figure("fresh", _FRESH, [share("over `import numpy`", ours, theirs, Bar("<=", 1.15))], [note])


def _run(code: str, env: Mapping[str, str], *arguments: str) -> str:
    command = run_code(code, *arguments, flags=("-W", "ignore"))
    return subprocess.run(command, check=True, env=dict(env), stdout=subprocess.PIPE, text=True).stdout


# -- a file that no daemon has seen --------------------------------------------------------------------------------

_TENSORS = 200
_SIZES, _QUICK = (100 << 20, 700 << 20, 5000 << 20), (1 << 20, 2 << 20)
#: Program that has imported numpy, and what its side imports before.
_PROGRAM = """\
import sys, time
import numpy
from trims.process.python import run_code
{before}
began = time.perf_counter_ns()
{measured}
first = float(tensor[3])
print(time.perf_counter_ns() - began)
"""
_IMPORTED = "import trims, trims_client.session"
_OPENED = "tensor = trims.connect().open_file(sys.argv[1])['tensor.7']"
_CONNECTED = f"{_IMPORTED}\nsession = trims.connect()\nsession.open_file(sys.argv[2]).close()"
_IN_SESSION = _OPENED.replace("trims.connect()", "session")
#: Import and call of others, by the ending of the files that they read.
_OTHERS = {
    ".safetensors": (
        "from safetensors import safe_open",
        "tensor = safe_open(sys.argv[1], framework='np').get_tensor('tensor.7')",
    ),
    ".pt": ("import torch", "tensor = torch.load(sys.argv[1], mmap=True)['tensor.7']"),
}
#: Row -> what ours has done before, what is timed, and whether the other side's import is.
_ROWS = {
    "a session that is connected": (_CONNECTED, _IN_SESSION, False),
    "with connecting": (_IMPORTED, _OPENED, False),
    "with import and connecting": ("", f"import trims\n{_OPENED}", True),
}
_ARRIVAL_NOTE = (
    "Against `safetensors.safe_open(...).get_tensor(...)` of the same file, which copies the tensor, a 200th of the "
    "file, or `torch.load(..., mmap=True)[...]`, which maps it as trims does. The page cache is warm. Before each turn "
    "the file is renamed, so that it is new to the daemon."
)


def arrivals(setup: Setup) -> Figure:
    """Measure files of each size, and one of `torch.save`, in turns of ours and theirs."""
    compared: list[Comparison] = []
    first = next(iter(_ROWS))
    with setup.scratch() as folder, setup.daemon(folder / "state") as daemon:
        known = write_checkpoint(folder / "known.safetensors", 1 << 20)
        env = {**environment(), "TRIMS_RUNTIME_DIR": str(daemon.runtime_dir), "TRIMS_BENCH_KNOWN": str(known)}
        for nbytes in _QUICK if setup.quick else _SIZES:
            path = write_checkpoint(folder / f"{nbytes}.safetensors", nbytes, tensors=_TENSORS)
            for row in _ROWS:
                title, bar = f"{nbytes / (1 << 20):,.0f} MiB, {row}", Bar("<=", 1.5) if row == first else None
                path, both = _turns(path, env, row, setup.repeats(15))
                compared.append(share(title, *both, bar))
            path.unlink()
        flat = [each.sides[0] for each in compared if each.what.endswith(first)]
        path, size = _torch_file(folder, setup.size(418 << 20, 2 << 20))
        both = _turns(path, env, first, setup.repeats(15))[1]
        compared.append(share(f"torch.save, {size}, {first}", *both, Bar("<=", 0.5)))
    compared.append(ratio("the largest over the smallest", flat[-1], flat[0], Bar("<=", 1.3)))
    return Figure("arrival", _ARRIVAL, compared, [_ARRIVAL_NOTE])


def _torch_file(folder: Path, nbytes: int) -> tuple[Path, str]:
    import torch

    path = folder / "checkpoint.pt"
    torch.save({f"tensor.{number}": torch.rand(nbytes // 4 // _TENSORS) for number in range(_TENSORS)}, path)
    return path, f"{nbytes / (1 << 20):,.0f} MiB"


def _turns(path: Path, env: Mapping[str, str], row: str, count: int) -> tuple[Path, tuple[Samples, Samples]]:
    """Return where the file is then, and both sides: ours of a file whose name is new each time."""
    before, measured, imports = _ROWS[row]
    load, read = _OTHERS[path.suffix]
    if path.suffix == ".pt":
        before = f"import torch\n{before}"
    theirs = ("", f"{load}\n{read}") if imports else (load, read)
    found: tuple[list[int], list[int]] = ([], [])
    for number in range(count + 1):
        path = path.rename(path.with_name(f"{uuid4().hex}{path.suffix}"))
        for side, (done, timed) in zip(found, ((before, measured), theirs), strict=True):
            code = _PROGRAM.format(before=done, measured=timed)
            taken = int(_run(code, env, os.fspath(path), env["TRIMS_BENCH_KNOWN"]))
            if number:
                side.append(taken)
    return path, (Samples("trims", found[0]), Samples(load.split()[1], found[1]))


PARTS = {
    "open": Part(_OPEN, warm_opens),
    "fresh": Part(_FRESH, fresh_interpreters),
    "arrival": Part(_ARRIVAL, arrivals),
}
