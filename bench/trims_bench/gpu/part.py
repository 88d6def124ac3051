"""One part of the check, in a process of its own: `python -m trims_bench.gpu.part KEY KIND WORK SIZES SOCKET LIFELINE`.

It sends what it finds as soon as that is there: `{"line": ...}` for a line of a figure, `{"test": ...}` for a test, and
`{"result": ...}` at the end, with what went wrong, if something did.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.process import messages
from trims.process.lifeline import depend_on
from trims_bench.gpu.lines import UNAVAILABLE
from trims_bench.gpu.parts import PARTS, Part
from trims_bench.gpu.rig import Rig, Sizes, UnavailableError
from trims_bench.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

_SHOWN = 1500


def take(part: Part, rig: Rig, send: Callable[[dict[str, Any]], None]) -> None:
    """Run a part, and report everything that it finds."""
    result: dict[str, Any] = {}
    try:
        if part.run is None:
            run_tests(send)
        elif isinstance(found := part.run(rig), dict):
            result = found
        else:
            for line in found:
                send({"line": line})
    except UnavailableError as error:
        result[UNAVAILABLE] = str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other parts go on
        result["error"] = f"{type(error).__name__}: {error}"
    send({"result": result})


def run_tests(send: Callable[[dict[str, Any]], None]) -> None:
    """Run the tests marked `gpu` and report each: its name, outcome, seconds and, unless it passed, why.

    A device that is not there is a failure here, not a skip. Only files that have such tests are collected: others may
    import what a bare machine lacks. Raises RuntimeError if pytest itself fails.
    """
    import pytest

    os.environ["TRIMS_REQUIRE"] = "gpu,kernels"
    os.chdir(ROOT)
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    words = ["-m", "gpu", "-q", "-p", "no:cacheprovider"]
    # Warnings of whatever else is installed on a machine that is not ours must not fail a test.
    words += ["-W", "default::DeprecationWarning", "-W", "default::FutureWarning"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = pytest.main([*words, *files], [_Reports(send)])
    if status not in (0, 1):
        raise RuntimeError(f"pytest ended with status {status:d}: {printed.getvalue()[-_SHOWN:]}")


class _Reports:
    """Plug-in of pytest: reports each test as soon as it has ended, so that a run that is stopped keeps it."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Report each test once, with the outcome of its call; report failures of its set-up and tear-down, too."""
        if report.when == "call" or not report.passed:
            self._report(report, report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Report a file that cannot be imported as a failure."""
        if report.failed:
            self._report(report, 0.0)

    def _report(self, report: pytest.TestReport | pytest.CollectReport, seconds: float) -> None:
        test = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(seconds, 3)}
        self._send({"test": test if report.passed else {**test, "why": str(report.longrepr)[-_SHOWN:]}})


def main() -> None:
    """Run the part that the command line names, and send its reports over the given socket."""
    key, kind, work, sizes, sock, lifeline = sys.argv[1:]
    depend_on(int(lifeline))
    with socket.socket(fileno=int(sock)) as door:
        rig = Rig(kind, Sizes(**json.loads(sizes)), Path(work))
        take(PARTS[key], rig, lambda report: messages.send(door, report, long=True))


if __name__ == "__main__":
    main()
