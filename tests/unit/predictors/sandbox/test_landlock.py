"""Landlock: files can be written to beneath the folders that are named, and nowhere else, whichever way is taken."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from trims_predictors.sandbox import landlock

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from pathlib import Path

without = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock")
PROGRAM = """
import os, sys
from trims_predictors.sandbox.landlock import restrict
allowed, denied, fd, victim = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
restrict([allowed, "/no/such/folder"])
def told(work):
    try:
        work()
        return "fine"
    except OSError as error:
        return type(error).__name__
def write(path):
    with open(path, "w") as file:
        file.write("x")
print(told(lambda: write(allowed + "/new")))
print(told(lambda: write(denied + "/new")))
print(told(lambda: write(denied + "/old")))
print(told(lambda: os.truncate(denied + "/old", 0)))
print(told(lambda: os.unlink(denied + "/old")))
print(told(lambda: os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)))
print(told(lambda: open(denied + "/old").read()))
print(told(lambda: open(f"/proc/{victim}/mem", "rb")))
"""


@without
def test_what_is_not_beneath_a_named_folder_is_read_and_not_written(tmp_path: Path) -> None:
    allowed, denied = tmp_path / "allowed", tmp_path / "denied"
    allowed.mkdir()
    denied.mkdir()
    (denied / "old").write_text("kept")
    fd = os.open(denied / "old", os.O_RDONLY)
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(allowed), str(denied), str(fd), str(os.getpid())],
            pass_fds=[fd], capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        os.close(fd)
    assert done.stderr == ""
    no = "PermissionError"
    assert done.stdout.split() == ["fine", no, no, no, no, no, "fine", no]
    assert (denied / "old").read_text() == "kept"


@without
def test_this_kernel_says_its_version() -> None:
    assert landlock.version() >= 1


def test_a_kernel_without_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "_call", lambda *_: -1)
    assert landlock.version() == 0
    with pytest.raises(NotSupportedError, match="this kernel's Landlock does not take files from a process"):
        landlock.restrict([])
