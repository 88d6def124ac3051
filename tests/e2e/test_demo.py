"""`make demo` from a newcomer's side: it runs, it says what it must, and it leaves nothing behind however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from trims_bench.evaluation.database.evaluations import Evaluations

from trims.daemon.main import shm_prefix
from trims.memory import shm

if TYPE_CHECKING:
    from pathlib import Path

DEMO = (sys.executable, "-m", "trims_bench.demo", "--repeat", "1", "--processes", "2")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Everything the demo makes goes into the folder."""
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(scratch), **more}


def left_in(folder: Path) -> list[str]:
    """Runtime folders and shared memory of a demo that has ended."""
    return [*map(str, (folder / "tmp").glob("trims-run-*")), *shm.names(shm_prefix(folder / "state"))]


def demo(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, "--state-dir", str(folder / "state"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment(folder, COLUMNS="120", **env),
    )


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_demo_shows_starts_equal_answers_and_one_copy(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = demo(folder, "--models", "resnet50")
    assert done.returncode == 0, done.stderr
    starts = (
        "framework alone, its file in memory",
        "trims, at a daemon that has never seen it",
        "trims, on disk",
        "trims, in memory",
    )
    for said in (*starts, "is on disk after", "2 processes", "Answers: equal but for rounding."):
        assert said in done.stdout
    assert "Not counted" not in done.stdout
    assert "An HTTP request when no process runs the model" in done.stdout
    assert "Left behind: no process, no shared memory, no socket." in done.stdout
    copies = re.search(r"together take ([0-9.]+) of one copy", done.stdout)
    assert copies is not None
    assert 0.5 < float(copies.group(1)) < 1.05
    database = re.search(r"trims report --database (\S+)", done.stdout)
    assert database is not None
    with Evaluations(database.group(1)) as kept:
        (summary,) = kept.summaries()
        assert {(each.tier, each.way) for each in kept.read(summary.id).samples} == {
            ("file", "alone"), ("cpu", "alone"), ("file", "fresh"), ("disk", "fresh"), ("cpu", "fresh")
        }  # fmt: skip
    assert left_in(folder) == []


def test_without_mxnet_the_demo_says_why_and_goes_on(folder: Path) -> None:
    done = demo(folder, "--models", "vgg16", TRIMS_MXNET_PYTHON="/nowhere/python")
    assert done.returncode == 0, done.stderr
    assert (
        "The MXNet part is left out: no environment of MXNet at /nowhere/python; `make mxnet-env` makes it."
        in done.stdout
    )
    assert "Left behind: no process" in done.stdout


def test_a_demo_that_cannot_start_says_so_in_one_line(folder: Path) -> None:
    (folder / "state").write_text("in the way")
    done = demo(folder, "--models", "resnet50")
    assert done.returncode == 1
    assert done.stderr.startswith("the demo ends here: ")
    assert "Traceback" not in done.stderr
    assert left_in(folder) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_demo_that_is_interrupted_leaves_nothing(folder: Path, number: signal.Signals, status: int) -> None:
    process = subprocess.Popen(
        [*DEMO, "--state-dir", str(folder / "state"), "--models", "resnet50"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder, PYTHONUNBUFFERED="1"),
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Registering")  # the daemon serves from here on
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == status, errors
    assert left_in(folder) == []
    # The lock of the state folder is free again: no daemon is left that holds it.
    assert demo(folder, "--models", "vgg16", TRIMS_MXNET_PYTHON="/nowhere/python").returncode == 0
