"""Lifelines: the kernel ends a process group when the process that it depends on ends, however that happens.

A lifeline is a pair of connected sockets. The process that others depend on holds one end and never uses it. The
dependent process has the other end, alone, and has the kernel send SIGKILL to its whole group at the first event
there; the only event is that the held end closes. This needs no thread and no cooperation: it works while native code
computes.
PR_SET_PDEATHSIG would not do: it fires when the *thread* that started the process ends, and for the parent only.

Each dependent group has a lifeline of its own, because the group that gets the signal belongs to the open file. A pipe
would not do: a process can open its end once more by `/proc/self/fd/N`, for writing, and what it writes is an event for
all that depend on the pipe. A socket cannot be opened so, and what is sent on it reaches the held end, where it fails.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn


class Lifeline:
    """Dependence of one process group on this process, as this process holds it."""

    def __init__(self) -> None:
        self._held, self._given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._held.shutdown(socket.SHUT_RD)  # what the dependent process sends fails, and takes no memory

    def fileno(self) -> int:
        """Return the end for the dependent process, which inherits it or gets it in a message."""
        return self._given.fileno()

    @property
    def closed(self) -> bool:
        """Return whether the lifeline was closed here."""
        return self._held.fileno() < 0

    def given(self) -> None:
        """Close the other end here: the dependent process has its own copy, or never will. Idempotent."""
        self._given.close()

    def close(self) -> None:
        """End the group that depends on it. Idempotent."""
        self._given.close()
        self._held.close()


def depend_on(own: int) -> None:
    """End this process's group together with the holder of a lifeline.

    Args:
        own: This process's end of the lifeline, which must stay open and must not be shared with another group.
    """
    fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    if has_ended(own):  # it closed before we asked for the signal
        end_group()


def end_group() -> NoReturn:
    """End this process and its group, as its lifeline is about to do.

    For a process that learns in another way that the holder of its lifeline has let go of it or ended, such as from the
    end of a second socket. If it only returned, its end of the lifeline would go with it, perhaps before the held end
    does, and what it has started would stay.
    """
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("SIGKILL is not survived")


def has_ended(own: int, wait_s: float = 0.0) -> bool:
    """Return whether the holder of a lifeline has let go of it or ended.

    Args:
        own: This process's end.
        wait_s: Seconds to wait for that.
    """
    poll = select.poll()
    poll.register(own, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))
