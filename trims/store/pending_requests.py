"""Requests to the store, and their outcomes."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.errors import (
    CapacityError,
    DeadlineError,
    InUseError,
    LostPeerError,
    NotInPlaceError,
    QuotaError,
    TrimsError,
)
from trims.core.place import FILE
from trims.core.records import record
from trims.store.catalog import FILE_PREFIX
from trims.trace.context import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.lease import Waiter
    from trims.core.place import Place
    from trims.memory.cuda.drivers import Export
    from trims.memory.pages import Pages
    from trims.store.resolve.resolved import Resolved
    from trims.trace.context import SpanContext

log = logging.getLogger(__name__)


@record
class Granted:
    """A lease. `fd` is the replica's read-only descriptor; it stays the store's and is valid while the lease is.

    Attributes:
        warm: Whether the replica was there when the open came.
        export: What lets a borrower open a device's memory; None on the host. Its descriptor stays the store's, too.
        pages: Where the tensors lie in the artifact's own files; none if they lie in the replica's memory. Their
            descriptors stay the store's, too.
        anywhere: Neither the request nor the manifest named a place.
        resumed: Taken up by its key, without a look into a name.
    """

    lease: int
    key: str
    place: Place
    generation: int
    nbytes: int
    digest: str
    fd: int
    warm: bool
    export: Export | None = None
    pages: tuple[Pages, ...] = ()
    anywhere: bool = False
    resumed: bool = False
    foreign: str = ""


@record
class Loaded:
    """The replica is there; no lease holds it."""

    key: str
    place: Place
    nbytes: int


Outcome = Granted | Loaded | TrimsError


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One request: what residency must know of it, and what the store needs to answer it.

    Attributes:
        waiter: The session that asks, whether it wants a lease, and its deadline.
        name: Model, or `file:` and a path.
        place: Where; None leaves it to the manifest.
        answer: Called exactly once, from any thread, without a lock held.
        resolved: Set once the name has been looked into.
        retried: Whether one attempt met a broken replica.
        met: Error of that attempt.
        only_look: The name is to be looked into, and nothing else; `answer` is called if that fails.
        verified: Whether the artifact must be read before the answer.
        hint: No request waits for it: what an open could do without is not begun for it.
        trace: The span that it is a part of; None if none is recorded.
    """

    waiter: Waiter
    name: str
    place: Place | None
    answer: Callable[[Outcome], None]
    resolved: Resolved | None = None
    retried: bool = False
    met: TrimsError | None = None
    only_look: bool = False
    verified: bool = False
    hint: bool = False
    trace: SpanContext | None = field(default_factory=current.get)

    @property
    def names_no_place(self) -> bool:
        """Return whether neither the request nor the manifest names a place."""
        return self.place is None and self.resolved is not None and self.resolved.manifest.residency.place is None

    @property
    def anywhere(self) -> bool:
        """Return whether the request names no place and reads: it may be answered before the artifact was read."""
        reads = self.waiter.wants_lease or self.hint
        return self.place in (None, FILE) and reads and not self.verified

    @property
    def may_be_converted(self) -> bool:
        """Return whether the request may be served from an image as well as from the artifact's own files."""
        own_files = self.resolved is not None and self.resolved.in_place is not None
        return own_files and self.anywhere and self.names_no_place

    def in_words(self, error: TrimsError) -> TrimsError:
        """Return an error of residency as the client reads it: with the model's name, as residency only knows keys.

        Errors of the store's own requests stay as they are: the log names the request.
        """
        name = self.name.removeprefix(FILE_PREFIX)
        if self.waiter.internal or isinstance(error, QuotaError):
            return error
        if isinstance(error, NotInPlaceError):
            return NotInPlaceError(f"{name} cannot be served at file: {error}; open it without a place")
        if isinstance(error, (DeadlineError, InUseError, CapacityError)):
            return type(error)(f"{name}: {error}")
        return error


def session_ended(ask: PendingRequest) -> LostPeerError:
    """Return the answer to a request whose session is over."""
    return LostPeerError(f"the session ended before its request for {ask.name!r} was answered")


@dataclass(slots=True)
class Pending:
    """An answer to wait for."""

    _ready: threading.Event = field(default_factory=threading.Event)
    _outcome: Outcome | None = None

    def set(self, outcome: Outcome) -> None:
        """Set the outcome: the `answer` of a PendingRequest."""
        self._outcome = outcome
        self._ready.set()

    def done(self, timeout_s: float | None = None) -> bool:
        """Wait at most `timeout_s` seconds. Return whether the answer is there."""
        return self._ready.wait(timeout_s)

    def result(self, timeout_s: float | None = None) -> Granted | Loaded:
        """Wait for the answer. Raises the answer if it is an error, or TimeoutError."""
        if not self._ready.wait(timeout_s):
            raise TimeoutError
        assert self._outcome is not None, "set() comes before the event"
        if isinstance(self._outcome, TrimsError):
            raise self._outcome
        return self._outcome


def log_failure(what: str, level: int = logging.WARNING) -> Callable[[Outcome], None]:
    """Return an `answer` for a request that no client waits for: it logs a failure, with what that means."""

    def report(outcome: Outcome) -> None:
        if isinstance(outcome, TrimsError):
            log.log(level, "%s: %s", what, outcome)

    return report
