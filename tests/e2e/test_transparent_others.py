"""Tests of others have the same outcomes, test by test, with their frameworks' loaders alone and with ours.

With ours each file counts as written long ago, and as large enough (`tests/support/others_loaders.py`). `make
others-tests` runs all, those that are downloaded first, too, and prints how many loads came from shared memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from junit import outcomes
from others_loaders import COUNTS
from repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from trims.daemon.main import Daemon

SUITE_S = 500.0


class Suite(NamedTuple):
    """Tests of a package.

    Attributes:
        words: What pytest is given.
        loader: The function of which some loads must come from shared memory.
    """

    words: tuple[str, ...]
    loader: str


#: Tests that lie in wheels. Those of numpy that it calls slow write archives of gigabytes.
IN_WHEELS = {
    "numpy": Suite(("-m", "not slow", "numpy.lib.tests.test_format", "numpy.lib.tests.test_io"), "numpy.load"),
    "joblib": Suite(("joblib.test.test_numpy_pickle",), "numpy.load"),
}


def run(suite: Suite, folder: Path, way: str, environment: dict[str, str]) -> dict[str, str]:
    """Run the tests of a suite in a new process. Return test -> outcome."""
    report, scratch = folder / f"{way}.xml", folder / f"{way}-tmp"
    command = [
        sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", f"--junitxml={report}",
        f"--basetemp={scratch}", *(("-p", "others_loaders") if COUNTS in environment else ()), "--pyargs", *suite.words,
    ]  # fmt: skip
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TRIMS_", "PYTEST_"))}
    ended = subprocess.run(
        command, cwd=folder, env={**inherited, **environment}, capture_output=True, text=True, check=False,
        timeout=SUITE_S,
    )  # fmt: skip
    assert report.exists(), (ended.stdout + ended.stderr)[-2000:]
    return outcomes(report)


def compare(suite: Suite, daemon: Daemon, folder: Path, name: str) -> None:
    alone = run(suite, folder, "alone", {})
    environment = {
        "TRIMS_RUNTIME_DIR": str(daemon.config.runtime_dir), COUNTS: str(folder / "counts.json"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }  # fmt: skip
    ours = run(suite, folder, "ours", environment)
    counts: dict[str, Any] = json.loads((folder / "counts.json").read_text())
    sys.stdout.write(f"{name:12} {len(alone)} tests, {dict(Counter(alone.values()))}; {counts}\n")
    assert {test: (alone.get(test), ours.get(test)) for test in alone | ours if alone.get(test) != ours.get(test)} == {}
    assert counts["shared"].get(suite.loader, 0) > 0


@pytest.mark.parametrize("name", IN_WHEELS)
def test_a_suite_of_a_wheel_has_equal_outcomes(name: str, daemon: Daemon, folder: Path) -> None:
    compare(IN_WHEELS[name], daemon, folder, name)
