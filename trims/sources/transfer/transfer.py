"""Transfers: from an opened address to memory, over several connections, checked and resumed.

The bytes go from the kernel to where they stay, and are checked there while they are hot. A source breaks off, stalls
or is busy: then the pieces that are missing are asked for again, with a growing pause, until nothing has come for as
long as `Limits.patience_s`. Not covered: one transfer for however many ask (`fetcher`), and where files lie (`files`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import tenacity

from trims.core.errors import LostPeerError, SourceUnavailableError
from trims.sources.transfer import checksums
from trims.sources.transfer.checksums import hasher
from trims.sources.transfer.partial import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trims.sources.base import Opened, Part, RemoteFile
    from trims.sources.transfer.limits import Limits
    from trims.sources.transfer.partial import Partial


# Digests that need a file's bytes in order: a thread hashes what has come so far, right behind the transfer.


class InOrder(threading.Thread):
    """Hashes the bytes of a transfer in order, as far as they have come.

    Args:
        partial: Says which pieces are there, and has their bytes.
        names: Digests to compute.
    """

    def __init__(self, partial: Partial, names: Iterable[str]) -> None:
        super().__init__(name="trims-digest", daemon=True)
        self._partial = partial
        self._hashers = {name: hasher(name, partial.nbytes) for name in names}
        self._come = threading.Condition()
        self._stopped = False
        self._failed: BaseException | None = None

    def woken(self) -> None:
        """Go on: a piece has come."""
        with self._come:
            self._come.notify()

    def stop(self) -> None:
        """End before all has come. Returns once the thread reads no more."""
        with self._come:
            self._stopped = True
            self._come.notify()
        self.join()

    def digests(self) -> dict[str, str]:
        """Wait until all pieces, which are there, were hashed; return the digests in hex."""
        self.woken()
        self.join()
        if self._failed is not None:
            raise self._failed
        return {name: each.hexdigest() for name, each in self._hashers.items()}

    def run(self) -> None:
        """See `threading.Thread.run`."""
        try:
            for piece in range(self._partial.pieces):
                with self._come:
                    self._come.wait_for(lambda at=piece: self._stopped or self._partial.has(at))  # type: ignore[misc]
                    if self._stopped:
                        return
                with self._partial.room(piece) as data:
                    for each in self._hashers.values():
                        each.update(data)
        except BaseException as error:  # noqa: BLE001 - raised where the digests are asked for
            self._failed = error


#: Pieces of one request: long enough that its round trip costs little.
_RUN_PIECES = 64
#: Pieces of the last requests, so that all connections end at about the same time.
_LEAST_RUN_PIECES = 4
_FIRST_PAUSE_S = 0.25
#: Seconds between two looks, during a pause, whether another connection has failed.
_LOOK_S = 0.1
_MOST_PAUSE_S = 20.0


@dataclass(slots=True)
class Moved:
    """Bytes of a transfer.

    Attributes:
        done_bytes: There by now, with those that were there before.
        fetched_bytes: Read from the source, also what was asked for twice.
    """

    done_bytes: int = 0
    fetched_bytes: int = 0
    total_bytes: int = 0


@dataclass(slots=True)
class Work:
    """State that the transfers of one job share.

    Attributes:
        stop: Set when all is to end.
        failed: Set when a part has failed for good: the others end.
        trouble: Why nothing comes at the moment, for people; empty while bytes come.
    """

    moved: Moved
    stop: threading.Event = field(default_factory=threading.Event)
    failed: threading.Event = field(default_factory=threading.Event)
    trouble: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    moved_at_s: float = field(default_factory=time.monotonic)

    def came(self, nbytes: int) -> None:
        """Count bytes that were there already."""
        with self.lock:
            self.moved.done_bytes += nbytes

    def has_come(self, done_bytes: int) -> None:
        """Count all bytes that have gone over the network so far."""
        with self.lock:
            self.moved.done_bytes = self.moved.fetched_bytes = done_bytes


class Transfer:
    """One file on its way.

    Args:
        file: One of its files.
        limits: Shared with other transfers.
        work: Counts, and stops it.
    """

    def __init__(self, opened: Opened, file: RemoteFile, partial: Partial, limits: Limits, work: Work) -> None:
        self._opened, self._file, self._partial, self._limits = opened, file, partial, limits
        self._work = work
        self._left = _runs(partial.missing(), _RUN_PIECES if file.in_ranges else partial.pieces)
        self._in_order: InOrder | None = None

    def run(self, digests: Iterable[str] = ()) -> dict[str, str]:
        """Fetch what is missing. Return the file's checksums in hex: those that combine, and `digests`.

        Raises:
            SourceUnavailableError: Nothing has come for as long as the limits say.
            LostPeerError: The transfer was stopped.
            DigestMismatchError: The bytes are not those that the source states.
            Others: Raised by `Opened.fill`.
        """
        self._in_order = InOrder(self._partial, digests) if digests else None
        try:
            if self._in_order is not None:
                self._in_order.start()
            self._fetch()
            found = self._partial.combined()
            if self._in_order is not None:
                found |= self._in_order.digests()
        finally:
            if self._in_order is not None:
                self._in_order.stop()
        checksums.compare(self._file.name, self._file.checksums, found, "its source states")
        return found

    def _fetch(self) -> None:
        pieces = sum(map(len, self._left))
        if not pieces:
            return
        connections = min(self._limits.each, -(-pieces // _LEAST_RUN_PIECES)) if self._file.in_ranges else 1
        with ThreadPoolExecutor(connections, thread_name_prefix="trims-fetch") as pool:
            busy = [pool.submit(self._fetch_runs, connections) for _ in range(connections)]
            done, _ = wait(busy, return_when=FIRST_EXCEPTION)
            if any(each.exception() for each in done):
                self._work.failed.set()
                self._opened.close()
            errors = [error for each in busy if (error := each.exception()) is not None]
        if errors:  # those that were only stopped say nothing
            raise next((each for each in errors if type(each) is not LostPeerError), errors[0])

    def _fetch_runs(self, connections: int) -> None:
        while (run := self._next_run(connections)) is not None:
            self._fetch_run(run)

    def _next_run(self, connections: int) -> range | None:
        with self._work.lock:
            if not self._left:
                return None
            first = self._left.pop()
            if not self._file.in_ranges:
                return first
            share = max(_LEAST_RUN_PIECES, sum(map(len, [first, *self._left])) // (2 * connections))
            share += share % 2  # a large page is two pieces
            if len(first) > share:
                self._left.append(first[share:])
            return first[:share]

    def _fetch_run(self, run: range) -> None:
        """Fill some adjoining pieces, with as many requests as it takes."""
        left, asked_at_s = deque(run), list[float]()

        def is_given_up(state: tenacity.RetryCallState) -> bool:
            del state
            silent_since_s = max(self._work.moved_at_s, *asked_at_s)  # waiting for a connection is no silence
            return time.monotonic() - silent_since_s > self._limits.patience_s

        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(SourceUnavailableError), wait=pause, stop=is_given_up,
            before_sleep=self._note_trouble, sleep=self._sleep, reraise=True,
        ):  # fmt: skip
            with attempt, self._slot():
                asked_at_s = asked_at_s or [time.monotonic()]
                self._ask(left)

    def _ask(self, left: deque[int]) -> None:
        """Ask for adjoining pieces at once; those that have come are taken from `left`."""
        partial = self._partial
        partial.prefault(left[0], len(left))
        with contextlib.ExitStack() as rooms:
            parts: list[Part] = [(piece * PIECE_BYTES, rooms.enter_context(partial.room(piece))) for piece in left]
            filling = self._opened.fill(self._file, parts)
            with contextlib.closing(filling):  # type: ignore[type-var] # of a plug-in it may be any iterator
                for _ in filling:
                    self._came(left.popleft())

    def _came(self, piece: int) -> None:
        partial, work = self._partial, self._work
        partial.filled(piece)
        nbytes = partial.length_of(piece)
        with work.lock:
            work.moved.done_bytes += nbytes
            work.moved.fetched_bytes += nbytes
            work.moved_at_s, work.trouble = time.monotonic(), ""
        if self._in_order is not None:
            self._in_order.woken()
        self._sleep(self._limits.bandwidth.pause_s(nbytes))

    def _sleep(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while not (self._work.stop.is_set() or self._work.failed.is_set()):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            self._work.stop.wait(min(left_s, _LOOK_S))
        raise LostPeerError("the transfer was stopped; what has come is kept")

    def _note_trouble(self, state: tenacity.RetryCallState) -> None:
        self._work.trouble = str(state.outcome.exception()) if state.outcome is not None else ""

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        """Wait for a connection that the limits allow, and take it for the block."""
        while not self._limits.slots.acquire(timeout=0.1):
            self._sleep(0)
        try:
            yield
        finally:
            self._limits.slots.release()


def pause(state: tenacity.RetryCallState) -> float:
    """Return the seconds before the next request: those that the source asks for, else ever more, with jitter."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked_s = getattr(error, "retry_after_s", None)
    grown_s = tenacity.wait_random_exponential(_FIRST_PAUSE_S, _MOST_PAUSE_S)(state)
    return grown_s if asked_s is None else min(max(asked_s, grown_s), 10 * _MOST_PAUSE_S)


def _runs(pieces: list[int], most: int) -> list[range]:
    """Group pieces into runs of adjoining ones, `most` pieces at most in each; the first run last."""
    runs: list[range] = []
    for piece in pieces:
        if runs and runs[-1].stop == piece and len(runs[-1]) < most:
            runs[-1] = range(runs[-1].start, piece + 1)
        else:
            runs.append(range(piece, piece + 1))
    return runs[::-1]


def stated_digests(file: RemoteFile, expected: Mapping[str, str]) -> set[str]:
    """Return the digests of a file that need its bytes in order and that are stated."""
    return {name for name in (*file.checksums, *expected) if name not in checksums.COMBINED}
