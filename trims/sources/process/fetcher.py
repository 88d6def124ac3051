"""The daemon's half of the process that moves bytes: started when there is something to fetch, and again if it dies.

A job that a process took with it into its end is given to the next one, which finds what was fetched. Any number of
jobs run at once. Safe to call from several threads.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import logging
import queue
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trims.core.errors import (
    BadMessageError,
    DeadlineError,
    LostPeerError,
    NoSpaceError,
    SourceUnavailableError,
    TrimsError,
    from_code,
)
from trims.manifests.addresses import without_secret
from trims.process import messages
from trims.process.child import Child, Ties, exit_words
from trims.process.child_environment import FETCHING, child_environment
from trims.process.python import run_ours
from trims.trace.children import ask_for_spans, take_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

log = logging.getLogger(__name__)
#: Bytes of a message about all files of an address, at most.
MOST_MESSAGE_BYTES = 16 << 20
#: Seconds between two looks at whether a job is still wanted.
_LOOK_S = 0.1
#: Ends of processes that one job outlives without any byte moved between them.
_MOST_ENDS = 3
#: Seconds that a job which was stopped may take to answer.
_STOP_S = 5.0
#: Seconds over which the rate is smoothed that is shown.
_SMOOTHING_S = 3.0


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Settings of transfers.

    Attributes:
        downloads: Folder for what is fetched and has no other place.
        connections: Most connections at once.
        each: Most connections of one transfer.
        bytes_per_s: Most bytes a second; None for no limit.
        patience_s: Seconds without a byte after which a transfer gives up.
        allow_hosts: Hosts and networks that may be reached whatever they are.
        headers: File of headers for servers of `https:` addresses; empty for none.
        capacity_bytes: Most bytes of all downloads together; None for no bound.
    """

    downloads: str
    connections: int = 8
    each: int = 4
    bytes_per_s: float | None = None
    patience_s: float = 120.0
    allow_hosts: tuple[str, ...] = ()
    headers: str = ""
    capacity_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of a job: there by now, read from the source, and in all (0 while that is unknown).

    Attributes:
        trouble: Why nothing comes at the moment, for people; empty while bytes come.
    """

    done_bytes: int = 0
    fetched_bytes: int = 0
    total_bytes: int = 0
    trouble: str = ""


@dataclass
class Running:
    """A job that runs.

    Attributes:
        address: Address without secrets.
        what: `look`, `fetch`, `image` or `push`.
    """

    address: str
    what: str
    moved: Moved = field(default_factory=Moved)
    clock: Callable[[], float] = time.monotonic
    _rate: float = 0.0
    _seen: tuple[float, int] = (0.0, 0)

    def report(self, moved: Moved) -> None:
        """Note progress."""
        now_s = self.clock()
        before_s, before = self._seen
        if before_s and now_s > before_s:
            weight = min(1.0, (now_s - before_s) / _SMOOTHING_S)
            self._rate += weight * ((moved.fetched_bytes - before) / (now_s - before_s) - self._rate)
        self._seen, self.moved = (now_s, moved.fetched_bytes), moved

    @property
    def rate(self) -> float:
        """Return the bytes a second, lately; 0 once nothing has come for a while."""
        is_silent = self.clock() - self._seen[0] > _SMOOTHING_S or bool(self.moved.trouble)
        return 0.0 if is_silent else self._rate

    @property
    def left_s(self) -> float | None:
        """Return the seconds that are left at this rate; None while that is unknown."""
        left, rate = self.moved.total_bytes - self.moved.done_bytes, self.rate
        return left / rate if rate > 0 and self.moved.total_bytes else None


class _EndedError(Exception):
    """The process that did a job has ended."""


class Fetcher:
    """Jobs of a daemon."""

    def __init__(self, settings: FetchSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._closed = False
        self._running: dict[int, Running] = {}
        self._numbers = itertools.count(1)
        #: Jobs by kind, failures by code, and bytes over the network, since the start.
        self._counts: Counter[str] = Counter()

    def do(
        self,
        what: str,
        order: Mapping[str, Any],
        *,
        fds: Sequence[int] = (),
        wanted: Callable[[], bool] = lambda: True,
        on_moved: Callable[[Moved], None] = lambda moved: None,  # noqa: ARG005
    ) -> dict[str, Any]:
        """Have a job done; return its answer. Blocks.

        Args:
            what: `look`, `fetch`, `image` or `push`.
            order: What the job needs; `address` is in each.
            fds: Descriptors to send along; they stay the caller's.
            wanted: Asked now and then; once false, the job is stopped.
            on_moved: Called with its progress, in this thread.

        Raises:
            DeadlineError: The job was not wanted any more.
            TrimsError: The job failed.
        """
        message = ask_for_spans({**order, "do": what, "shown": without_secret(str(order["address"]))})
        number, running = next(self._numbers), Running(message["shown"], what)

        def report(moved: Moved) -> None:
            running.report(moved)
            on_moved(moved)

        with self._lock:
            self._running[number] = running
        try:
            return self._do(message, fds, wanted, report)
        except TrimsError as error:
            with self._lock:
                self._counts[f"transfer_failures.{error.code}"] += 1
            raise
        finally:
            with self._lock:
                del self._running[number]
                self._counts[f"transfers.{what}"] += 1
                self._counts["transferred_bytes"] += running.moved.fetched_bytes

    def _do(
        self,
        message: Mapping[str, Any],
        fds: Sequence[int],
        wanted: Callable[[], bool],
        on_moved: Callable[[Moved], None],
    ) -> dict[str, Any]:
        """Have a job done, by one process after the other if need be."""
        ends, before, fetched_before = 0, -1, 0
        while True:
            moved = Moved()

            def report(now: Moved, earlier: int = fetched_before) -> None:
                nonlocal moved
                moved = replace(now, fetched_bytes=earlier + now.fetched_bytes)
                on_moved(moved)

            try:
                return self._taken().do(message, fds, wanted, report)
            except _EndedError as error:
                ends = ends + 1 if moved.done_bytes <= before else 1
                before, fetched_before = max(before, moved.done_bytes), max(fetched_before, moved.fetched_bytes)
                if self._closed or ends >= _MOST_ENDS:
                    raise SourceUnavailableError(f"{message['shown']}: {error}; what was fetched is kept") from error
                log.warning("%s; its jobs go on in another one", error)

    def _taken(self) -> _Process:
        with self._lock:
            if self._closed:
                raise LostPeerError("the daemon is shutting down")
            if self._process is None or self._process.ended:
                self._process = _Process(self._settings)
            return self._process

    def running(self) -> list[Running]:
        """Return the jobs that run."""
        with self._lock:
            return list(self._running.values())

    def counts(self) -> dict[str, int]:
        """Return how many jobs, failures and bytes there were since the start."""
        with self._lock:
            return {
                **self._counts,
                "transferred_bytes": self._counts["transferred_bytes"]
                + sum(each.moved.fetched_bytes for each in self._running.values()),
            }

    @property
    def pid(self) -> int | None:
        """Return the process's number; None if there is none."""
        with self._lock:
            return None if self._process is None or self._process.ended else self._process.pid

    def close(self) -> None:
        """End all jobs; what was fetched is kept. Idempotent."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            process.close()


def _of_plugins() -> list[str]:
    """Return patterns of the variables that sources of plugins may read: those that begin with their schemes."""
    schemes = {each.name for each in importlib.metadata.entry_points(group="trims.sources")}
    return sorted(f"{scheme.upper().replace('-', '_')}_*" for scheme in schemes)


class _Process:
    """One process and the jobs it does."""

    def __init__(self, settings: FetchSettings) -> None:
        try:
            ties = Ties()
            command = run_ours("trims.sources.process.child", *ties.arguments, json.dumps(asdict(settings)))
            environment = child_environment(FETCHING, _of_plugins(), secrets=True)
            self._child = Child(command, ties, env=environment)
        except OSError as error:
            raise LostPeerError(f"the process that fetches cannot be started: {error}") from error
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self.ended = False
        self._reader = threading.Thread(target=self._read, name="trims-fetcher", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Return its number."""
        return self._child.pid

    def do(
        self, order: Mapping[str, Any], fds: Sequence[int], wanted: Callable[[], bool], report: Callable[[Moved], None]
    ) -> dict[str, Any]:
        """Have one job done. Raises _EndedError, and as `Fetcher.do`."""
        number, answers = next(self._numbers), queue.SimpleQueue[dict[str, Any] | None]()
        with self._lock:
            if self.ended:
                raise _EndedError(self._words())
            self._answers[number] = answers
        try:
            self._send({**order, "id": number}, fds)
            return self._wait(number, answers, wanted, report)
        finally:
            with self._lock:
                self._answers.pop(number, None)

    def _wait(
        self,
        number: int,
        answers: queue.SimpleQueue[dict[str, Any] | None],
        wanted: Callable[[], bool],
        report: Callable[[Moved], None],
    ) -> dict[str, Any]:
        stopped_at_s: float | None = None
        while True:
            try:
                answer = answers.get(timeout=_LOOK_S)
            except queue.Empty:
                answer = {}
            if answer is None:
                raise _EndedError(self._words())
            if stopped_at_s is None and not wanted():
                stopped_at_s = time.monotonic()
                self._send({"do": "stop", "id": number})
            if "moved" in answer:
                report(Moved(answer["moved"], answer["fetched"], answer["total"], answer["trouble"]))
            if stopped_at_s is not None and ("error" in answer or time.monotonic() - stopped_at_s > _STOP_S):
                raise DeadlineError("the transfer was stopped: no request waits for it any more; what has come is kept")
            if "done" in answer:
                take_spans(answer, self.pid, "fetcher")
                found: dict[str, Any] = answer["done"]
                return found
            if "error" in answer:
                raise _error(answer["error"])

    def _send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        try:
            with self._sending:
                messages.send(self._child.socket, dict(message), fds, long=True)
        except (LostPeerError, OSError) as error:
            raise _EndedError(self._words()) from error

    def _read(self) -> None:
        """Hand each message to the job it is for, until the process ends; then reap it."""
        with contextlib.suppress(BadMessageError, OSError):
            while (received := messages.receive(self._child.socket, long_bytes=MOST_MESSAGE_BYTES)) is not None:
                message = received[0]
                with self._lock:
                    answers = self._answers.get(message["id"])
                if answers is not None:
                    answers.put(message)
        self._child.kill()
        self._child.wait()
        with self._lock:
            self.ended = True
            waiting = list(self._answers.values())
        for answers in waiting:
            answers.put(None)
        self._child.socket.close()

    def _words(self) -> str:
        status = self._child.status
        return f"the process that fetches {exit_words(status) if status is not None else 'has ended'}"

    def close(self) -> None:
        """End it, and wait for its end. Idempotent."""
        self._child.kill()
        self._reader.join()


def _error(raw: Mapping[str, Any]) -> TrimsError:
    if raw["code"] == NoSpaceError.code:
        return NoSpaceError(raw["message"], raw.get("room_bytes"))
    return from_code(raw["code"], raw["message"])
