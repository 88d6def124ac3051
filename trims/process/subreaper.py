"""Processes that lose their parents: handed to an adopter here (PR_SET_CHILD_SUBREAPER), not to process 1."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_DIE_WITH_PARENT, _ADOPT = 1, 36


def adopt() -> None:
    """Be handed, from now on, what the processes below this one leave behind when they end."""
    _control(_ADOPT, 1)


def die_with(parent: int) -> None:
    """Have the kernel end this process together with its parent.

    Args:
        parent: Process id, read before the fork. If the parent has ended already, this process exits.
    """
    _control(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def end_strays(known: Collection[int]) -> bool:
    """One round of ending this process's children that are not known; what they have started is handed to this process.

    Args:
        known: Children that stay.

    Returns:
        Whether one was found, so that another round is needed.
    """
    found = [pid for pid in children() if pid not in known]
    for pid in found:
        with contextlib.suppress(ProcessLookupError):  # none but this process buries it, so the number is still its own
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return bool(found)


def children() -> list[int]:
    """Return the numbers of this process's children, those that have ended and are not buried among them.

    Not every kernel lists them (`/proc/PID/task/TID/children`), so all processes are looked at.
    """
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent_of(name) == own]


def _parent_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])  # the name before it may hold anything
    except (OSError, IndexError):
        return 0


def _control(operation: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(operation, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({operation}): {os.strerror(number)}")
