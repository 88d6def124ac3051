"""A process that is ended at its limit together with everything it started, detached processes included.

A keeper is detached from the daemon that starts it, on purpose. One that a failed part leaves behind would hold memory
of the device, and the next part would count it. So this process becomes the parent of every orphan among its
descendants (`PR_SET_CHILD_SUBREAPER`), and ends them all after each part.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PR_SET_CHILD_SUBREAPER = 36
_READ_BYTES = 1 << 16
_END_S = 20.0


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process cannot become a subreaper")


def run(command: Sequence[str], limit_s: float, hear: Callable[[str], None]) -> int | None:
    """Run a command to its end, or to the limit; nothing of it is left after that.

    Args:
        command: Command to which a last argument is added: a descriptor to write lines to.
        limit_s: Seconds.
        hear: Called with each line, as it comes.

    Returns:
        The exit status; None if it was ended.
    """
    reading, writing = os.pipe()
    process = None
    try:
        process = subprocess.Popen([*command, str(writing)], pass_fds=[writing], stdin=subprocess.DEVNULL)
        os.close(writing)
        writing = -1
        if not _hear_all(process, reading, time.monotonic() + limit_s, hear):
            return None
        return process.wait()
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
        end_descendants()
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)


def _hear_all(process: subprocess.Popen[bytes], fd: int, until_s: float, hear: Callable[[str], None]) -> bool:
    """Read until the process ends, whose children may hold the pipe open for longer. Return False if it is too late."""
    unread = b""
    with selectors.DefaultSelector() as selector, _descriptor_of(process) as ended:
        selector.register(fd, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        while (left_s := until_s - time.monotonic()) > 0:
            ready = {key.fd for key, _ in selector.select(left_s)}
            if fd in ready and (data := os.read(fd, _READ_BYTES)):
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    hear(line.decode())
            elif ended in ready:
                return True
            elif fd in ready:
                selector.unregister(fd)
    return False


@contextlib.contextmanager
def _descriptor_of(process: subprocess.Popen[bytes]) -> Iterator[int]:
    fd = os.pidfd_open(process.pid)
    try:
        yield fd
    finally:
        os.close(fd)


def end_descendants() -> None:
    """Kill every descendant of this process, and wait until none is left; one that hangs in a driver is given up."""
    until_s = time.monotonic() + _END_S
    while (descendants := _descendants()) and time.monotonic() < until_s:
        for pid in descendants:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in descendants:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def _descendants() -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                if status[0] != "Z" or int(status[1]) == os.getpid():
                    parents[int(entry.name)] = int(status[1])
    found, todo = [], [os.getpid()]
    while todo:
        parent = todo.pop()
        children = [pid for pid, its in parents.items() if its == parent]
        found += children
        todo += children
    return found
