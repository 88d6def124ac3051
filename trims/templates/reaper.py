"""The guard of a template: a small process round it, so that nothing of a predictor outlives the endpoint.

Templates of programs have none: their host adopts what they leave. A process that makes a session of its own (`setsid`)
leaves its predictor's group, and the signal of a lifeline passes it by. So processes that lose their parents are handed
to an adopter here (PR_SET_CHILD_SUBREAPER), not to process 1:

1. to their predictor, for as long as it lives;
2. then to the template, which ends what a predictor has left (`end_strays`);
3. if the template is gone, to the guard, which does the same. The guard can separate predictors from what they have
   left, because the template reports each predictor (`Reports`). It runs until the last predictor has ended, and ends
   all that is left then, or when its lifeline ends.

In a namespace the guard is also why the end of bubblewrap may end everything: bubblewrap ends when its program does,
and the guard does not end with the template, whose predictors live on.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct

from trims.process.lifeline import has_ended
from trims.process.subreaper import adopt, die_with, end_strays

#: Seconds between two rounds of ending what may start more meanwhile.
_ROUND_S = 0.05
#: Report of the template: the kind of event, and the process.
_LINE = struct.Struct("=ci")
BEGUN, HELPS, ENDED = b"+", b"h", b"-"
_MOST_BYTES = _LINE.size << 10


class Reports:
    """Reports of a template to its guard: which of its children are predictors, and which its modules have started.

    A predictor is reported before any other process can know of it.

    Args:
        fd: The template's end of a pipe; predictors must not hold it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def report(self, what: bytes, pid: int) -> None:
        """Report a process: a predictor that has `BEGUN` or `ENDED`, or what a module has started, which `HELPS`."""
        os.write(self._fd, _LINE.pack(what, pid))

    def close(self) -> None:
        """Close the pipe in a predictor. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def guarded(lifeline: int, sock: int) -> Reports:
    """Go on in a fork of this process, which stays behind as the guard and never returns.

    Call it while there is one thread, and in a process group that the lifeline does not end.

    Args:
        lifeline: This process's end. The guard only looks at it.
        sock: Socket to the supervisor. The guard must not hold it, or the other process's end would not be seen.

    Returns:
        Reports to the guard.
    """
    adopt()
    guard = os.getpid()
    read_fd, report_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        os.setsid()
        die_with(guard)
        return Reports(report_fd)
    try:
        os.close(sock)
        os.close(report_fd)
        _Guard(lifeline, pid, read_fd).run()
    finally:
        os._exit(0)


class _Guard:
    """Guard that buries ended processes, and ends what predictors leave once their template is gone.

    Args:
        lifeline: All is ended with it.
        hears: The end of a pipe on which the template reports predictors.
    """

    def __init__(self, lifeline: int, template: int, read_fd: int) -> None:
        self._lifeline = lifeline
        self._template: int | None = template
        self._hears = read_fd
        os.set_blocking(read_fd, False)
        self._predictors: set[int] = set()
        self._helpers: set[int] = set()
        self._poll = select.poll()

    def run(self) -> None:
        """Run until nothing is left."""
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        for fd in (self._lifeline, ours.fileno(), self._hears):
            self._poll.register(fd, select.POLLIN)
        more = False
        while not has_ended(self._lifeline):
            ended = self._reap()
            self._hear()  # after it: a template's reports on those that have ended are here by now
            for known in (self._predictors, self._helpers):
                known.difference_update(ended)
            if self._template is None:
                if not self._predictors:
                    break
                more = end_strays(self._predictors | self._helpers)
            self._poll.poll(_ROUND_S * 1000 if more else None)
            with contextlib.suppress(BlockingIOError):
                ours.recv(1 << 12)
        while end_strays(()):
            select.poll().poll(_ROUND_S * 1000)

    def _hear(self) -> None:
        """Read the template's reports; whole lines, which a pipe keeps together."""
        sets = {BEGUN: self._predictors.add, HELPS: self._helpers.add, ENDED: self._predictors.discard}
        while True:
            try:
                reports = os.read(self._hears, _MOST_BYTES)
            except BlockingIOError:
                return
            if not reports:  # the template and all that it forked have let go of it
                with contextlib.suppress(KeyError):
                    self._poll.unregister(self._hears)
                return
            for what, pid in _LINE.iter_unpack(reports):
                sets[what](pid)

    def _reap(self) -> list[int]:
        """Take in all children that have ended; returns which."""
        ended = []
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                ended.append(pid)
        if self._template in ended:
            self._template = None
        return ended
