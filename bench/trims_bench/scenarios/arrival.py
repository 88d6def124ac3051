"""First arrival: a file that no daemon has seen, from the first call of a library to the first value of one tensor."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING
from uuid import uuid4

from trims.process.python import run_code
from trims_bench.checkpoints import write_checkpoint
from trims_bench.figures import Bar, Comparison, Figure, Samples, share

if TYPE_CHECKING:
    from pathlib import Path

    from trims_bench.scenarios.base import Setup

TITLE = "first arrival of a file: from the first call to the first value of one tensor, fresh processes"
_TENSORS = 200
_SIZES = (100 << 20, 700 << 20, 5000 << 20)
_QUICK = (1 << 20, 2 << 20, 4 << 20)
#: Program that has imported numpy; the second way of each has imported its library, too.
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
_TRIMS = "import trims", "tensor = trims.connect().open_file(sys.argv[1])['tensor.7']"
#: An import, and a call.
_SAFETENSORS = (
    "from safetensors import safe_open",
    "tensor = safe_open(sys.argv[1], framework='np').get_tensor('tensor.7')",
)
_TORCH = "import torch", "tensor = torch.load(sys.argv[1], mmap=True)['tensor.7']"
#: Imports of a client, those of `trims.connect` among them.
_IMPORTED = "import trims, trims_client.session"
_CONNECTED = f"{_IMPORTED}\nsession = trims.connect()\nsession.open_file(sys.argv[2]).close()"


def run(setup: Setup) -> Figure:
    """Measure each size in turns of ours and theirs."""
    compared: list[Comparison] = []
    connected: list[Samples] = []
    with setup.scratch() as folder, setup.daemon(folder / "state") as daemon:
        known = write_checkpoint(folder / "known.safetensors", 1 << 20)
        env = {**_environment(), "TRIMS_RUNTIME_DIR": str(daemon.runtime_dir)}
        for nbytes in _QUICK if setup.quick else _SIZES:
            path = write_checkpoint(folder / f"{nbytes}.safetensors", nbytes, tensors=_TENSORS)
            turns = _Turns(path, known, env, _SAFETENSORS, setup.repeats(15))
            size = f"{nbytes / (1 << 20):,.0f} MiB"
            ours, theirs = turns.samples(_CONNECTED, _TRIMS[1].replace("trims.connect()", "session")), turns.theirs()
            connected.append(ours)
            compared.append(share(f"{size}, a session that is connected", ours, theirs, Bar("<=", 1.5)))
            ours, theirs = turns.samples(_IMPORTED, _TRIMS[1]), turns.theirs()
            compared.append(share(f"{size}, with connecting", ours, theirs, None))
            ours, theirs = turns.samples("", "\n".join(_TRIMS)), turns.theirs(imported=False)
            compared.append(share(f"{size}, with import and connecting", ours, theirs, None))
            turns.remove()
        compared.append(_torch(setup, folder, known, env))
    ends = connected[-1], connected[0]
    compared.append(Comparison("the largest over the smallest", ends[0].median / ends[1].median, "x", _FLAT, ends))
    return Figure("arrival", TITLE, compared, [_NOTE])


def _torch(setup: Setup, folder: Path, known: Path, env: dict[str, str]) -> Comparison:
    """A checkpoint of `torch.save`; both sides have imported torch, as a program has that uses such files."""
    import torch

    path = folder / "checkpoint.pt"
    nbytes = setup.size(418 << 20, 2 << 20)
    torch.save({f"tensor.{number}": torch.rand(nbytes // 4 // _TENSORS) for number in range(_TENSORS)}, path)
    turns = _Turns(path, known, env, _TORCH, setup.repeats(15))
    ours = turns.samples(f"import torch\n{_CONNECTED}", _TRIMS[1].replace("trims.connect()", "session"))
    turns.remove()
    title = f"torch.save, {nbytes / (1 << 20):,.0f} MiB, a session that is connected"
    return share(title, ours, turns.theirs(), Bar("<=", 0.5))


_FLAT = Bar("<=", 1.3)
_NOTE = (
    "Against `safetensors.safe_open(...).get_tensor(...)` of the same file, which copies the tensor, a 200th of the "
    "file, or `torch.load(..., mmap=True)[...]`, which maps it as trims does. The page cache is warm. Before each turn "
    "the file is renamed, so that it is new to the daemon."
)


class _Turns:
    """Fresh processes over one file, ours and theirs in turn."""

    def __init__(self, path: Path, known: Path, env: dict[str, str], others: tuple[str, str], count: int) -> None:
        self._path = path
        self._known = known
        self._env = env
        self._others = others
        self._count = count
        self._theirs: list[tuple[int, int]] = []

    def samples(self, before: str, measured: str) -> Samples:
        """Ours; theirs are taken in between."""
        self._theirs, ours = [], []
        for _ in range(self._count + 1):
            self._rename()
            ours.append(self._run(before, measured))
            self._theirs.append((self._run(*self._others), self._run("", "\n".join(self._others))))
        return Samples("trims", ours[1:])

    def theirs(self, *, imported: bool = True) -> Samples:
        """Theirs of the same turns."""
        return Samples(self._others[0].split()[1], [pair[0 if imported else 1] for pair in self._theirs[1:]])

    def remove(self) -> None:
        """The file, wherever it is."""
        self._path.unlink()

    def _rename(self) -> None:
        """Make it a file that the daemon has not seen: its name and the time of its last change are new."""
        path = self._path.with_name(f"{uuid4().hex}{self._path.suffix}")
        self._path = self._path.rename(path)

    def _run(self, before: str, measured: str) -> int:
        code = _PROGRAM.format(before=before, measured=measured)
        command = run_code(code, str(self._path), str(self._known), flags=("-W", "ignore"))
        return int(subprocess.run(command, check=True, env=self._env, capture_output=True, text=True).stdout)


def _environment() -> dict[str, str]:
    from trims_bench.runs import environment

    return environment()
