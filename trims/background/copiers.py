"""The daemon's half of its copiers: start them, hand them tasks, and go on without them where that must be.

A copier does one task at a time. More are started when more tasks run at once: each file system has workers of its
own, so there are few. One that dies, or cannot be started, costs nothing but priority: its task is done again in the
thread that asked.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from typing import TYPE_CHECKING, Any

from trims.background.messages import MOST_FILES, check, send_order
from trims.background.task import Running, SourceFailedError
from trims.core.errors import BadMessageError, LostPeerError
from trims.memory.mapping import LARGE_PAGE_BYTES
from trims.process import messages
from trims.process.child import Child, Ties, exit_words
from trims.process.child_environment import child_environment
from trims.process.python import run_ours
from trims.trace.children import take_spans

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.background.task import Order

log = logging.getLogger(__name__)
#: Bytes between two looks at whether a request waits: as much as is reserved at once, some ms at most bandwidths.
SLICE_BYTES = LARGE_PAGE_BYTES
#: Longest task, in bytes, that is done without a copier: it takes a few milliseconds.
HERE_BYTES = 4 << 20
#: Seconds that a request waits for the end of a slice. Then the copier is killed: it may get no processor at all.
_PATIENCE_S = 0.2
_LOOK_S = 0.05


class LostCopierError(Exception):
    """A copier ended, or could not be started; the task may be done again."""


class Process:
    """One copier. Raises LostCopierError if it cannot be started."""

    def __init__(self) -> None:
        try:
            ties = Ties()
            self._child = Child(run_ours("trims.background.child", *ties.arguments), ties, env=child_environment())
        except OSError as error:
            raise LostCopierError(f"no copier can be started: {error}") from error
        # It ends by itself when it had nothing to do for a while, and is waited for then.
        self._reaper = threading.Thread(target=self._child.wait, name="trims-copier", daemon=True)
        try:
            self._reaper.start()
        except RuntimeError as error:
            self._child.close()
            raise LostCopierError(f"no copier can be started: {error}") from error

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._child.pid

    @property
    def ended(self) -> bool:
        """Return whether the process has ended, or is about to, because it was idle for too long."""
        if self._child.socket.fileno() < 0 or self._child.status is not None:
            return True
        poll = select.poll()
        poll.register(self._child.socket, select.POLLIN)
        return bool(poll.poll(0))

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for the end of the process. Return its status; None if it has not ended in time."""
        self._reaper.join(seconds)
        return self._child.status

    def begin(self, order: Order, is_awaited: Callable[[], bool] = lambda: False) -> bool:
        """Send a task.

        Return False when a request starts waiting (see `ask`). Raises LostCopierError, OSError for a target.
        """
        try:
            send_order(self._child.socket, order)
        except (LostPeerError, OSError) as error:
            raise self._lost(error) from error
        return self._answer(is_awaited) is not None

    def ask(self, request: dict[str, Any], is_awaited: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """Return the answer to a request. Return None if a waiting request's patience ended: the copier is then killed.

        Raises LostCopierError, SourceFailedError, OSError for a target.
        """
        try:
            messages.send(self._child.socket, request)
        except (LostPeerError, OSError) as error:
            raise self._lost(error) from error
        return self._answer(is_awaited)

    def _answer(self, is_awaited: Callable[[], bool]) -> dict[str, Any] | None:
        poll = select.poll()
        poll.register(self._child.socket, select.POLLIN)
        awaited_s = 0.0
        while not poll.poll(_LOOK_S * 1e3):
            awaited_s += _LOOK_S if is_awaited() else 0.0
            if awaited_s > _PATIENCE_S:
                self.kill()
                return None
        try:
            received = messages.receive(self._child.socket)
        except (BadMessageError, OSError) as error:
            raise self._lost(error) from error
        if received is None:
            raise self._lost("it closed its socket")
        take_spans(received[0], self.pid, "copier")
        return check(received[0])

    def kill(self) -> None:
        """Kill the process and wait for its end: it writes nowhere any more."""
        self.end()
        self.wait()

    def close(self) -> None:
        """Close the connection, so that the process ends once it has finished its task; returns at once."""
        self._child.socket.close()

    def end(self) -> None:
        """End the process, which has nothing to do; returns at once."""
        self._child.kill()  # also one that is stopped
        self._child.socket.close()

    def _lost(self, why: object) -> LostCopierError:
        self.kill()
        return LostCopierError(f"copier {self.pid} {exit_words(self._child.status or 0)} ({why})")


class Copiers:
    """All copiers of a daemon; safe to call from several threads.

    Args:
        start: Starts one.
    """

    def __init__(self, start: Callable[[], Process] = Process) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._idle: list[Process] = []
        self._closed = False

    def carry(
        self,
        order: Order,
        *,
        bytes_per_s: float | None,
        moved: Callable[[int, float], None],
        is_awaited: Callable[[], bool],
    ) -> dict[str, str] | None:
        """Do a task. Return the digests by name. Blocks.

        Args:
            bytes_per_s: The bandwidth; None for no limit.
            moved: Called after each slice with its bytes and the seconds that it took; may wait.
            is_awaited: Whether a request has come to wait for it.

        Returns:
            None when a request starts waiting: then nothing is written any more, and the task is to be done again, as
            fast as can be.

        Raises:
            SourceFailedError: A file ended early or cannot be read.
            OSError: The target cannot be written.
        """
        reported_bytes = 0

        def report(done_bytes: int, took_s: float) -> None:  # bytes done for the second time are not reported again
            nonlocal reported_bytes
            if done_bytes > reported_bytes:
                more, reported_bytes = done_bytes - reported_bytes, done_bytes
                moved(more, took_s)

        if order.task.nbytes > HERE_BYTES and len(order.files) <= MOST_FILES:
            try:
                return self._carry(order, bytes_per_s, report, is_awaited)
            except LostCopierError as error:
                log.warning("%s; its work goes on in the daemon, with a higher priority", error)
        return _do_here(order, report, is_awaited)

    def _carry(
        self,
        order: Order,
        bytes_per_s: float | None,
        report: Callable[[int, float], None],
        is_awaited: Callable[[], bool],
    ) -> dict[str, str] | None:
        process = self._take()
        try:
            if not process.begin(order, is_awaited):
                return None
            done = 0
            while done < order.task.nbytes:
                if is_awaited():
                    if process.ask({"do": "drop"}, is_awaited) is not None:
                        self._give_back(process)
                    return None
                began_s = time.monotonic()
                answer = process.ask({"do": "go", "nbytes": SLICE_BYTES, "bytes_per_s": bytes_per_s}, is_awaited)
                if answer is None:
                    return None
                done = answer["done"]
                report(done, time.monotonic() - began_s)
            answer = process.ask({"do": "end"}, is_awaited)
        except (SourceFailedError, OSError):  # said by the copier, which has let go of all
            self._give_back(process)
            raise
        except BaseException:
            process.close()
            raise
        if answer is None:
            return None
        self._give_back(process)
        digests: dict[str, str] = answer["digests"]
        return digests

    def _take(self) -> Process:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if not process.ended:
                    return process
                process.close()
        return self._start()

    def _give_back(self, process: Process) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(process)
                return
        process.close()

    def close(self) -> None:
        """Let all end that have nothing to do, and the others once they are done. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()


def _do_here(
    order: Order, report: Callable[[int, float], None], is_awaited: Callable[[], bool]
) -> dict[str, str] | None:
    running = Running(order)
    try:
        while running.done_bytes < order.task.nbytes:
            if is_awaited():
                return None
            began_s = time.monotonic()
            report(running.advance(), time.monotonic() - began_s)
        return running.digests()
    finally:
        running.close()
