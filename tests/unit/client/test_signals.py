"""A signal handler that raises, wherever it interrupts the client, wedges nothing and leaves no lease behind."""

# fault (clients): a signal handler raises inside `open` or `close` -> the exception; no lease; other threads go on

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from looking import leases, wait_until
from repository import SUPPORT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

SCRIPT = SUPPORT / "interrupted_client.py"
#: Signals of 500 that may cost a descriptor: between the kernel's giving it and the first `try` around it,
#: Python has no way to keep it from loss.
MOST_LOST = 50


@pytest.mark.parametrize("how", ["once", "again"])
def test_an_exception_of_a_signal_handler_anywhere_in_the_client_wedges_nothing(
    how: str, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    """`again`: the interrupted open must connect again first."""
    command = [sys.executable, str(SCRIPT), str(daemon.config.runtime_dir), str(checkpoint("m", nbytes=800)), how]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1][-2000:]
    told = json.loads(line)
    assert len(told["places"]) > 10, "the signals met the client at few places"
    assert told["lost"] <= MOST_LOST
    wait_until(lambda: leases(daemon) == 0, "a lease was left behind")
    process.communicate()
