"""Lifelines: the kernel ends a process group when the process that it depends on ends, however that happens.

The process that others depend on holds the writing end of a pipe and never writes. A dependent process has the kernel
send SIGKILL to its whole group at the first event on the reading end; the only event is that the writing end closes.
This needs no thread and no cooperation: it works while native code computes. PR_SET_PDEATHSIG would not do: it fires
when the *thread* that started the process ends, and for the parent only.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal


def depend_on(reading_end: int) -> int:
    """End this process's group together with the holder of the pipe's writing end.

    Args:
        reading_end: Of that pipe. It may be shared with other processes, and may be closed afterwards.

    Returns:
        The descriptor that must stay open. It is a second opening of the pipe, because the group that gets the signal
        belongs to the open file, which a fork shares.
    """
    own = os.open(f"/proc/self/fd/{reading_end}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(own, select.POLLIN)
    if poll.poll(0):  # it closed before we asked for the signal
        os.killpg(0, signal.SIGKILL)
    return own
