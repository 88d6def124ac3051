"""The tests marked `gpu`, each reported as soon as it has ended: a run that is stopped loses only what came after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from trims_bench.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from trims_bench.gpu.rig import Rig

_SHOWN = 1500
_FD = "TRIMS_GPU_TESTS_FD"


def run(rig: Rig) -> Iterator[dict[str, Any]]:
    """Run the tests and yield each: its name, outcome, seconds and, unless it passed, why.

    A device that is not there is a failure here, not a skip. Only files that have such tests are collected: others may
    import what a bare machine lacks.
    """
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "-p", __name__]
    # Warnings of whatever else is installed on a machine that is not ours must not fail a test.
    command += ["-W", "default::DeprecationWarning", "-W", "default::FutureWarning", *files]
    environment = {**os.environ, _FD: str(writing), "TRIMS_REQUIRE": "gpu,kernels"}
    with (rig.work / "tests.log").open("w+") as log, os.fdopen(reading) as told:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, pass_fds=[writing], stdout=log, stderr=subprocess.STDOUT
        )
        os.close(writing)
        ran = 0
        for line in told:
            ran += 1
            yield json.loads(line)
        status = process.wait()
        if status not in (0, 1) or not ran:
            log.seek(0)
            said = log.read()[-_SHOWN:]
            yield {"test": "pytest itself", "outcome": "failed", "seconds": 0.0, "why": f"status {status}: {said}"}


# -- the plugin, inside pytest -------------------------------------------------------------------------------------


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Report a test once when a phase of it ends, and a failure at its beginning or end besides."""
    if report.when != "call" and report.passed:
        return
    told = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
    if not report.passed:
        told["why"] = str(report.longrepr)[-_SHOWN:]
    os.write(int(os.environ[_FD]), (json.dumps(told) + "\n").encode())


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported is a failure."""
    if report.failed:
        told = {"test": report.nodeid, "outcome": "failed", "seconds": 0.0, "why": str(report.longrepr)[-_SHOWN:]}
        os.write(int(os.environ[_FD]), (json.dumps(told) + "\n").encode())
