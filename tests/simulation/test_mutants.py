"""Each mutant still fits the code, names what must find it, and is one that the code does not have already."""

from __future__ import annotations

import subprocess

import pytest

from tests.simulation.mutants import ROOT, SIMULATION, Mutant, mutants


def test_there_are_mutants_of_each_repaired_defect_and_twenty_more() -> None:
    names = [mutant.path.stem for mutant in mutants()]
    assert len([name for name in names if name.startswith("1-")]) >= 20
    assert len([name for name in names if name.startswith("2-")]) >= 20


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.path.stem)
def test_a_mutant_fits_the_code_and_names_what_must_find_it(mutant: Mutant) -> None:
    tried = subprocess.run(
        ["patch", "-p1", "--dry-run", "--forward", "--fuzz=0", "-i", str(mutant.path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 0, tried.stdout
    assert mutant.what
    if mutant.killer != SIMULATION:
        target = mutant.killer.split()[0]
        assert (ROOT / target).exists(), f"{target} is not there"
