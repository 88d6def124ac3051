"""A command that an endpoint runs: its error is JSON, and it ends with the endpoint."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from looking import wait_until

from trims.process.lifeline import Lifeline

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "trims_bench.evaluation.served.errand"


def errand(lifeline: Lifeline, *words: str) -> subprocess.Popen[str]:
    fd = lifeline.fileno()
    return subprocess.Popen(
        [sys.executable, "-I", "-m", MODULE, str(fd), *words], pass_fds=[fd], start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_an_error_can_be_read_by_programs() -> None:
    lifeline = Lifeline()
    process = errand(lifeline, "report", "--explain")
    out, err = process.communicate(timeout=50)
    lifeline.close()
    assert (process.returncode, out) == (3, "")
    assert json.loads(err.splitlines()[-1])["code"] == "bad_request"


def test_output_and_status_are_those_of_the_command() -> None:
    lifeline = Lifeline()
    process = errand(lifeline, "version")
    out, _ = process.communicate(timeout=50)
    lifeline.close()
    assert (process.returncode, out.split()[0]) == (0, "trims")


def test_it_ends_with_the_holder_of_its_lifeline(folder: Path) -> None:
    lifeline = Lifeline()
    process = errand(lifeline, "serve", "--runtime-dir", str(folder / "r"), "--state-dir", str(folder / "s"))
    lifeline.given()
    wait_until(lambda: (folder / "s").exists(), "the command runs")
    lifeline.close()
    process.communicate(timeout=50)
    assert process.returncode == -signal.SIGKILL
