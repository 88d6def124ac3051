"""Prove the instruments: put known defects back, one at a time, and show that each is found.

Each file `mutants/*.patch` is one defect. Its head says what it is and what must find it: the simulation, or tests
where the defect lies beyond what is simulated (real sockets, real files, the client). Run all: `make mutants`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATCHES = ROOT / "tests" / "simulation" / "mutants"
_KILLER = "killed by: "
SIMULATION = "simulation"


@dataclass(frozen=True)
class Mutant:
    """One defect.

    Attributes:
        what: The defect in one sentence.
        killer: `simulation`, or arguments of pytest.
    """

    path: Path
    what: str
    killer: str

    @classmethod
    def read(cls, path: Path) -> Mutant:
        """The head of a patch file: the defect, then what must find it."""
        what, killer = path.read_text(encoding="utf-8").splitlines()[:2]
        return cls(path, what.removeprefix("# "), killer.removeprefix("# ").removeprefix(_KILLER))

    def command(self, seconds: float) -> list[str]:
        """Return the command that must fail."""
        if self.killer == SIMULATION:
            return [sys.executable, "-m", "tests.simulation", "--seconds", str(seconds)]
        return [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *self.killer.split()]

    def ending(self, run: subprocess.CompletedProcess[str]) -> str:
        """Found, survived, or neither: a run that broke for a reason of its own proves nothing."""
        if run.returncode == 0:
            return "SURVIVED"
        says = "replay: " if self.killer == SIMULATION else "failed"
        return "found" if run.returncode == 1 and says in run.stdout else "BROKE"


def mutants() -> list[Mutant]:
    """Return all mutants, by name."""
    return [Mutant.read(path) for path in sorted(PATCHES.glob("*.patch"))]


def copy_tree(target: Path) -> None:
    """Copy the files that a run needs, without environments and history."""
    for name in ("trims", "client", "predictors", "bench", "tests", "manifests"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, target)


def hunt(mutant: Mutant, seconds: float) -> tuple[Mutant, str, float, str]:
    """Apply one mutant to a copy and run what must find it; returns how that ended, the seconds, and its last words."""
    with tempfile.TemporaryDirectory(prefix="trims-mutant-") as folder:
        copy_tree(Path(folder))
        applied = subprocess.run(
            ["patch", "-p1", "--forward", "--fuzz=0", "-i", str(mutant.path)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if applied.returncode:
            return mutant, "does not apply", 0.0, applied.stdout + applied.stderr
        paths = os.pathsep.join([folder, *(f"{folder}/{name}" for name in ("client", "predictors", "bench"))])
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        began = time.monotonic()
        command = mutant.command(seconds)
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        return mutant, mutant.ending(run), time.monotonic() - began, (run.stdout + run.stderr)[-1500:]


def main() -> int:
    """Hunt all mutants, or those that are named; returns 1 if one survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of patches; all if none is given")
    parser.add_argument("--seconds", type=float, default=60.0, help="the simulation's budget (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="hunts at once (default %(default)s)")
    options = parser.parse_args()
    chosen = [each for each in mutants() if not options.names or any(part in each.path.stem for part in options.names)]
    survived = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, ended, seconds, words in pool.map(lambda each: hunt(each, options.seconds), chosen):
            print(f"{ended:14} {seconds:5.1f} s  {mutant.path.stem}: {mutant.what}", flush=True)
            if ended != "found":
                survived += 1
                print(words, flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} mutants were found")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
