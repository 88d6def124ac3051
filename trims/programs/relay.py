"""The caller's process while its program runs elsewhere: signals go on to the program, its stops and end come back.

All signals are blocked and waited for, so none is lost and none interrupts. The host's messages come as one, too
(SIGIO on its socket).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal

from trims.core.errors import BadMessageError
from trims.process import messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

#: `si_code` of a signal that the kernel sends, for a terminal: the whole group gets it.
_BY_KERNEL = 0x80
#: Exit status if nothing knows how the program has ended.
_UNKNOWN = 70
#: Seconds between two looks at a program whose host has ended.
_LOOK_S = 0.05


class Relay:
    """Relay between the caller's process and a program that has begun. All signals are blocked.

    Args:
        group: Process group that it was given.
        numbers: Descriptors that the program has, which are closed here: a pipe's end would stay open otherwise.
    """

    def __init__(self, conn: Any, pid: int, group: int, pidfd: int, numbers: Sequence[int]) -> None:
        self._conn = conn
        self._pid, self._group = pid, group
        self._pidfd = pidfd
        self._error = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 64) if 2 in numbers else -1
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in numbers:
            if number <= 2:
                os.dup2(null, number)
            else:
                os.close(number)

    def run(self) -> NoReturn:
        """Relay until the program ends, and end as it has ended."""
        fd = self._conn.fileno()
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGIO)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
        waited = signal.valid_signals() - {signal.SIGCHLD}
        while self._hear():
            info = signal.sigwaitinfo(waited)
            if info.si_signo != signal.SIGIO:
                self._pass_on(info.si_signo, whole_group=info.si_code == _BY_KERNEL)
        self._await_unheard(waited)

    def _hear(self) -> bool:
        """Carry out what the host reports; ends the process if the program has ended. Return whether the host lives."""
        while True:
            try:
                received = messages.receive(self._conn)
            except BlockingIOError:
                return True
            except BadMessageError:
                return False
            if received is None:
                return False
            message, _ = received
            if message["op"] == "ended":
                _end(message["status"])
            if message["op"] == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)

    def _pass_on(self, number: int, *, whole_group: bool) -> None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, 0 if whole_group or number == signal.SIGCONT else number)
            group = os.getpgid(self._pid)
            if (whole_group or number == signal.SIGCONT) and group in (self._group, self._pid):
                os.killpg(group, number)

    def _await_unheard(self, waited: set[Any]) -> NoReturn:
        """Wait for the end of a program whose host was killed."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        while not poll.poll(0):
            info = signal.sigtimedwait(waited, _LOOK_S)
            if info is not None and info.si_signo != signal.SIGIO:
                self._pass_on(info.si_signo, whole_group=info.si_code == _BY_KERNEL)
        if self._error >= 0:
            words = f"trims exec: nothing can tell how process {self._pid} has ended: its host was killed\n"
            with contextlib.suppress(OSError):
                os.write(self._error, words.encode())
        os._exit(_UNKNOWN)


def _end(status: int) -> NoReturn:
    """End as the program has ended: with its exit status, or by its signal and without a dump of this process."""
    if status < 0:
        number = -status
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(status)
