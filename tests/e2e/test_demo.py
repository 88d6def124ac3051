"""`make demo` from a newcomer's side: it runs, it says what it must, and it leaves nothing behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from trims.daemon.folder_lock import FolderLock
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
def test_the_demo_shows_each_way_to_an_equal_answer_and_one_copy(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = demo(folder, "--out", str(folder / "out.json"))
    assert done.returncode == 0, done.stderr
    steps = ("1. Your program", "2. The same program", "3. A request", "4. 2 processes")
    assert [done.stdout.index(step) for step in steps] == sorted(done.stdout.index(step) for step in steps)
    assert "All answers: equal but for rounding." in done.stdout
    assert "Left behind: no process, no shared memory, no socket." in done.stdout
    figures = json.loads((folder / "out.json").read_text())["figures"]
    assert figures["request_s"] < figures["exec_s"] < figures["alone_s"]
    assert figures["memory_shared_bytes"] < figures["memory_alone_bytes"]
    assert left_in(folder) == []


def test_a_demo_that_cannot_start_says_so_in_one_line(folder: Path) -> None:
    (folder / "state").write_text("in the way")
    done = demo(folder)
    assert done.returncode == 1
    assert done.stderr.startswith("the demo ends here: ")
    assert "Traceback" not in done.stderr
    assert left_in(folder) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_demo_that_is_interrupted_leaves_nothing(folder: Path, number: signal.Signals, status: int) -> None:
    process = subprocess.Popen(
        [*DEMO, "--state-dir", str(folder / "state")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder, PYTHONUNBUFFERED="1"),
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("embed.py")  # the daemon serves from here on
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == status, errors
    assert left_in(folder) == []
    FolderLock(folder / "state", "the state folder").release()  # no daemon is left that holds it
