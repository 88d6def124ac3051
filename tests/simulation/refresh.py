"""Carry the mutants over to changed code: `python -m tests.simulation.refresh BASE`.

A mutant is a patch, so it stops fitting when the lines around it change. BASE is a commit that it still fits: there
the patch is applied, and what it changes is merged into the present file. A mutant whose own lines were changed since
is named and left as it is.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from .mutants import ROOT, Mutant, mutants

_HEAD_LINES = 2


def main() -> int:
    """Refresh all; returns 1 if one could not be."""
    base = sys.argv[1]
    renamed = _renamed(base)
    failed = [mutant.path.name for mutant in mutants() if not _refresh(mutant, base, renamed)]
    for name in failed:
        print(f"{name}: its own lines were changed since {base}; write it again by hand")
    return 1 if failed else 0


def _refresh(mutant: Mutant, base: str, renamed: dict[str, str]) -> bool:
    text = mutant.path.read_text(encoding="utf-8")
    old_names = [line[6:].split("\t")[0] for line in text.splitlines() if line.startswith("--- a/")]
    head = "".join(text.splitlines(keepends=True)[:_HEAD_LINES])
    with tempfile.TemporaryDirectory(prefix="trims-refresh-") as folder:
        before, mutated = Path(folder, "before"), Path(folder, "mutated")
        for tree in (before, mutated):
            for name in old_names:
                _write(tree / name, _run("git", "show", f"{base}:{name}"))
        if subprocess.run(["patch", "-p1", "-s", "-i", str(mutant.path)], cwd=mutated, check=False).returncode:
            return False
        parts = [_merged(before / name, mutated / name, renamed.get(name, name)) for name in old_names]
    if None in parts:
        return False
    mutant.path.write_text(head + "".join(filter(None, parts)), encoding="utf-8")
    return True


def _merged(before: Path, mutated: Path, name: str) -> str | None:
    """The mutant as a patch of the present file; None if both changed the same lines."""
    present = ROOT / name
    merged = subprocess.run(
        ["git", "merge-file", "--stdout", str(present), str(before), str(mutated)],
        capture_output=True,
        text=True,
        check=False,
    )
    if merged.returncode != 0:
        return None
    _write(mutated, merged.stdout)
    labels = ["--label", f"a/{name}", "--label", f"b/{name}"]
    found = subprocess.run(
        ["diff", "-u", *labels, str(present), str(mutated)], capture_output=True, text=True, check=False
    )
    return found.stdout


def _renamed(base: str) -> dict[str, str]:
    """Names at the base of files that have other names now."""
    lines = _run("git", "diff", "--find-renames", "--name-status", base).splitlines()
    return dict(line.split("\t")[1:3] for line in lines if line.startswith("R"))  # type: ignore[misc]


def _run(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
