"""The guard of a template: a small process round it, so that nothing of a predictor outlives the endpoint.

A process that makes a session of its own (`setsid`) leaves its predictor's group, and the signal of a lifeline passes
it by. So processes that lose their parents are handed to an adopter here (PR_SET_CHILD_SUBREAPER), not to process 1:

1. to their predictor, for as long as it lives;
2. then to the template, which ends what a predictor has left (`end_strays`);
3. if the template is gone, to the guard. It runs until nothing is left, and ends all when its lifeline ends.

In a namespace the guard is also why the end of bubblewrap may end everything: bubblewrap ends when its program does,
and the guard does not end with the template, whose predictors live on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
from typing import TYPE_CHECKING

from trims.wire.lifeline import has_ended

if TYPE_CHECKING:
    from collections.abc import Collection

_DIE_WITH_PARENT, _ADOPT = 1, 36
#: Between two rounds of ending what may start more meanwhile.
_ROUND_S = 0.05


def adopt() -> None:
    """Be handed, from now on, what the processes below this one leave behind when they end."""
    _control(_ADOPT, 1)


def guarded(lifeline: int, sock: int) -> None:
    """Go on in a fork of this process, which stays behind as the guard and never returns.

    Call it while there is one thread, and in a process group that the lifeline does not end.

    Args:
        lifeline: This process's end. The guard only looks at it.
        sock: To the supervisor. The guard must not hold it, or the end of the other process would not be seen there.
    """
    adopt()
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        _control(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != guard:  # it ended before we asked
            os._exit(1)
        return
    try:
        os.close(sock)
        _guard(lifeline)
    finally:
        os._exit(0)


def _guard(lifeline: int) -> None:
    """Bury what ends; end all once the lifeline has ended. Returns when nothing is left."""
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(ours, select.POLLIN)
    while _bury():
        poll.poll()
        with contextlib.suppress(BlockingIOError):
            ours.recv(1 << 12)
        if has_ended(lifeline):
            break
    while end_strays(()):
        poll = select.poll()
        poll.poll(_ROUND_S * 1000)


def _bury() -> bool:
    """Take in all children that have ended. Returns whether one lives."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] > 0:
            pass
    except ChildProcessError:
        return False
    return True


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
    """Of this process, those that have ended and are not buried among them.

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
