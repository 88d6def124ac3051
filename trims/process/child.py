"""Child processes that this process talks to: each has a socket to it, and is ended with it.

`Ties` are made first, because the command that is started names their descriptors. The child ends by itself when its
socket does, as a good child; the kernel ends it when this process ends, as a bad one (see `lifeline`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from trims.process.inherited import favour_none
from trims.process.lifeline import Lifeline
from trims.process.scheduling_class import weigh

if TYPE_CHECKING:
    from collections.abc import Sequence


class Ties:
    """Socket and lifeline between this process and a child that is to be started. Raises OSError.

    Attributes:
        socket: This process's end. It keeps messages whole (see `messages`), and no program inherits it.
        lifeline: Closing it ends the child's process group.
    """

    def __init__(self) -> None:
        self.socket, self._given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.lifeline = Lifeline()
        except BaseException:
            self.socket.close()
            self._given.close()
            raise

    @property
    def fds(self) -> tuple[int, int]:
        """Return the child's ends: its socket and its lifeline."""
        return self._given.fileno(), self.lifeline.fileno()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the child's ends as arguments of its command."""
        sock, lifeline = self.fds
        return "--socket", str(sock), "--lifeline", str(lifeline)

    def given(self) -> None:
        """Close the child's ends here: it has its own copies, or never will. Idempotent."""
        self._given.close()
        self.lifeline.given()

    def close(self) -> None:
        """End the child's group, and the connection. Idempotent."""
        self.given()
        self.lifeline.close()
        self.socket.close()


class Child:
    """One child process. Raises OSError if it cannot be started; its ties are closed then.

    Any thread may call `kill` and `give_way`; one thread waits for its end and closes it.

    Args:
        command: Program and arguments.
        ties: Made for it; the child's ends are closed here.
        fds: Further descriptors that it inherits.
        leads: Whether it leads a session of its own from the start. If not, it makes one itself.
        how: Further arguments for `subprocess.Popen`, such as `env` and `stderr`.
    """

    def __init__(
        self, command: Sequence[str], ties: Ties, *, fds: Sequence[int] = (), leads: bool = True, **how: Any
    ) -> None:
        self.socket, self.lifeline = ties.socket, ties.lifeline
        self._ties = ties
        self._leads = leads
        self._lock = threading.Lock()
        try:
            self._process = subprocess.Popen(
                command, pass_fds=[*ties.fds, *fds], stdin=subprocess.DEVNULL, start_new_session=leads, **how
            )
        except BaseException:
            ties.close()
            raise
        ties.given()
        favour_none(self._process.pid)
        #: Standard error of the process, if that was asked for.
        self.stderr = self._process.stderr

    @property
    def pid(self) -> int:
        """Return the process's number, which is its own until it was waited for."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Return its exit code, or minus the signal; None before it was waited for."""
        return self._process.returncode

    def watch(self) -> int:
        """Return a new descriptor that is readable once the process has ended; the caller closes it. Raises OSError."""
        return os.pidfd_open(self.pid)

    def weigh(self, niceness: int) -> None:
        """Set the weight of its session (see `scheduling_class`). Raises OSError; BlockingIOError to be tried again."""
        with self._lock:
            if self.status is None:  # else the number may be another process's
                weigh(self.pid, niceness)

    def kill(self) -> None:
        """Kill it and all that it has started in its group. Idempotent."""
        with self._lock:
            if self.status is None:
                with contextlib.suppress(ProcessLookupError):
                    (os.killpg if self._leads else os.kill)(self.pid, signal.SIGKILL)

    def exit_status(self) -> int:
        """Return how it ended, once it has, and leave it to be waited for: its number and its group's stay its own."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for its end, and end what it has left in its group.

        Args:
            seconds: Longest time to wait; None for as long as it takes.

        Returns:
            Its status; None if it has not ended yet.
        """
        if self.status is None:
            if seconds is not None and not self._ended_within(seconds):
                return None
            self.exit_status()
            if self._leads:
                self.kill()
            with self._lock:
                self._process.wait()
            self.lifeline.close()
        return self.status

    def reap(self) -> int:
        """Wait for its end for as long as it takes. Return its status."""
        status = self.wait()
        assert status is not None
        return status

    def _ended_within(self, seconds: float) -> bool:
        poll, pidfd = select.poll(), self.watch()
        try:
            poll.register(pidfd, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        finally:
            os.close(pidfd)

    def end(self, grace_s: float) -> int:
        """Have it end: its socket is closed, and after some seconds it is killed. Returns its status."""
        self.socket.close()
        if self.wait(grace_s) is None:
            self.kill()
        return self.reap()

    def close(self) -> None:
        """Kill it, wait for its end, and give back what it took here. Idempotent."""
        self.kill()
        self.reap()
        self._ties.close()
        if self.stderr is not None:
            self.stderr.close()


def exit_words(status: int, why_killed: str = "") -> str:
    """Return in words how a process ended.

    Args:
        status: Exit code, or minus the signal.
        why_killed: What may have sent SIGKILL, for behind it (see `trims.memory.shortage`).
    """
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}{why_killed if -status == signal.SIGKILL else ''}"
    return f"exited with status {status}"
