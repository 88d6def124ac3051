"""A really full /dev/shm and a really full disk: the declared error, never a SIGBUS, and all is well with room."""

# fault (capacity): the file system is smaller than the capacity, or others fill it -> nothing while idle images can
# leave; else `no_space`; never SIGBUS
# fault (capacity): the disk is full, to the last byte -> `no_space`; opens work that need no disk; registering gets
# `capacity`
# fault (capacity): a start on a full disk -> `capacity` for `add`, `rm`, `pin`; all else is served
# fault (sources): no room for a download -> `no_space` before a byte, after other downloads went
# fault (sources): the disk fills up meanwhile -> nothing; blocks are reserved

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from full_machine import SCENARIOS
from repository import SUPPORT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.mounts, pytest.mark.usefixtures("forked_starts")]
SCRIPT = SUPPORT / "full_machine.py"


@pytest.fixture(scope="module")
def own_mounts() -> list[str]:
    """The words in front of a command that give it mounts of its own, or a skip that says why there are none."""
    words = ["unshare", "--mount", "--propagation", "private"]
    try:
        trial = subprocess.run(
            [*words, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("util-linux's unshare is not installed")
    if trial.returncode:
        pytest.skip(f"this user may not mount in a private namespace: {trial.stderr.strip()}")
    return words


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_a_full_file_system_is_a_declared_error_and_nothing_worse(
    scenario: str, own_mounts: list[str], folder: Path
) -> None:
    command = [*own_mounts, sys.executable, str(SCRIPT), scenario, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
