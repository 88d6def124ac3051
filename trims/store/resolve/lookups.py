"""Names that are being looked into: one look for each name and epoch, and deadlines that hold meanwhile.

Looking may take minutes (a builder, a large file) or hang for ever (a dead network mount). So looks run in workers, and
each mount point has its own, which read headers, too: what hangs on one file system holds up no other. Paths need no
registry, and do not wait for a slow registry's names. Files that take long to hash have workers apart, so that short
files do not wait for them. These read a part of a file at a time, tenants in turn and the sessions of each in turn: one
with terabytes holds up no other. What headers show to be too large for an ask is never read. Files that are hashed
behind their readers have one worker for each mount point and a rate limiter, until a request waits for one. A file that
no ask waits for any more is not read to its end; how far it was read is remembered, so that a client that asks again
comes to the end. Not covered: what looking means (`resolve`), reading in parts (`hashing`).
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.background.rate_limit import Behind, RateLimiter
from trims.core.errors import ArtifactError, DeadlineError, InternalError, TrimsError
from trims.core.residency.timer_heap import TimerHeap
from trims.image.descriptors import explain_descriptors
from trims.store.catalog import FILE_PREFIX
from trims.store.fair_queue import FairQueue
from trims.store.pending_requests import session_ended
from trims.store.resolve.hashing import (
    DigestNeededError,
    LongReadError,
    NotWantedError,
    Progress,
    Reading,
    TurnOverError,
)
from trims.store.work import BEHIND, PoolsByMount
from trims.trace.spans import span

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.place import Place
    from trims.store.pending_requests import PendingRequest
    from trims.store.resolve.resolved import Resolved
    from trims.store.resolve.resolver import Resolver
    from trims.store.work import Pool, Pools
    from trims.trace.context import SpanContext

log = logging.getLogger(__name__)
#: Workers for each mount point that look, and read headers: the most threads that a hanging file system can take.
READERS = 16
#: Long files of a mount point that are hashed at once, among the `READERS`: each keeps several processors busy.
_LONG_READS = 4
#: Workers that read the registry to find out which mount point a name belongs to.
_SORTERS = 2
#: Number of partly read files whose progress is remembered.
_UNFINISHED = 64


@dataclass(slots=True, eq=False)
class _Look:
    """A look that is running, and the asks it answers.

    Attributes:
        digest: Whether the files must be read, if their digests are not known.
        behind: No request waits for it, only the store itself.
        tenant: Tenant in whose line it was put last.
        tenants: Tenants in whose lines it stands; None stands for those without a tenant.
    """

    name: str
    epoch: int
    digest: bool
    asks: dict[int, PendingRequest] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    behind: bool = False
    running: bool = False
    tenant: str | None = None
    tenants: set[str | None] = field(default_factory=set)

    @property
    def session(self) -> str | None:
        """Return the session of the look's oldest request: the look stands in the line of that session."""
        ask = next(iter(self.asks.values()), None)
        return None if ask is None or ask.waiter.session is None else str(ask.waiter.session)

    @property
    def trace(self) -> SpanContext | None:
        """Return the span of one of its requests; None if none is recorded."""
        return next((each.trace for each in self.asks.values() if each.trace is not None), None)


@dataclass(frozen=True, slots=True)
class _SizesOfAsks:
    """Judgement of sizes (see `hashing.Sizes`) for the requests that wait for one look."""

    lookups: Lookups
    look: _Look

    def may_refuse(self, nbytes: int, stated: Place | None) -> bool:
        """See `Sizes.may_refuse`."""
        return any(self.lookups.refusals_by_size(self.look, nbytes, stated))

    def refuse(self, nbytes: int, stated: Place | None) -> None:
        """See `Sizes.refuse`."""
        self.lookups.refuse_by_size(self.look, nbytes, stated)


class Lookups:
    """All looks that are running.

    Args:
        found: Called from a worker, once for each ask, with what was found or the error.
        pace: Rate limiter of files that no request waits for; by default without a limit.
        readers: Workers that look, shared with others that read headers, and not stopped here; by default its own.
        never_fits: Says why an image of at least so many bytes never fits an ask with a stated place; None if it may.
    """

    def __init__(
        self,
        resolver: Resolver,
        found: Callable[[PendingRequest, Resolved | TrimsError], None],
        pools: Pools,
        pace: RateLimiter | None = None,
        *,
        readers: PoolsByMount | None = None,
        never_fits: Callable[[PendingRequest, int, Place | None], TrimsError | None] | None = None,
    ) -> None:
        self._pace = pace or RateLimiter()
        self._shares_readers = readers is not None
        self._readers = readers or PoolsByMount(pools, "resolve", READERS)
        self._resolver = resolver
        self._found = found
        self._new_pool = pools
        self._lock = threading.Lock()
        self._looks: dict[tuple[str, bool], _Look] = {}
        self._by_ticket: dict[int, _Look] = {}
        #: Tickets of opens by session; a prefetch outlives its session.
        self._by_session: dict[int, set[int]] = {}
        self._due: TimerHeap[int] = TimerHeap(lambda _, ticket: ticket in self._by_ticket)
        self._sorters = pools("names", _SORTERS)
        self._path_sorters = pools("paths", 1)
        self._behind_by_mount: dict[str, Pool] = {}
        self._long_reads = PoolsByMount(pools, "hash", _LONG_READS)
        #: Looks that wait for a turn of a long read, by mount point and tenant: its sessions in turn.
        self._long_lines: dict[tuple[str, str | None], FairQueue[_Look]] = {}
        self._unfinished: OrderedDict[str, Progress] = OrderedDict()
        self._never_fits = never_fits or (lambda ask, nbytes, stated: None)  # noqa: ARG005 - nothing is too large
        self._stopped = False

    def add(self, ask: PendingRequest) -> None:
        """Have the name looked into, or join the look that is running. Never blocks."""
        with self._lock:
            look = self._join(ask, digest=not (ask.anywhere and self._resolver.in_place))
            if ask.waiter.session is not None and ask.waiter.wants_lease:
                self._by_session.setdefault(ask.waiter.session, set()).add(ask.waiter.ticket)
            if ask.waiter.deadline_at_s is not None:
                self._due.add(ask.waiter.deadline_at_s, ask.waiter.ticket)
        if look is not None:
            self._begin(look)

    def _join(self, ask: PendingRequest, *, digest: bool) -> _Look | None:
        """Let the request wait for a look. Return the look if it is to be begun. Called under the lock."""
        look = self._looks.get((ask.name, digest))
        # A lookup of an earlier epoch goes on for its own asks; this ask must not get its answer.
        joins = look is not None and look.epoch == self._resolver.epoch(ask.name)
        if look is None or not joins:
            look = self._looks[ask.name, digest] = _Look(ask.name, self._resolver.epoch(ask.name), digest)
            look.behind, look.tenant = ask.only_look, ask.waiter.tenant
            if digest and ask.name in self._unfinished:
                look.progress = self._unfinished.pop(ask.name)
        hurries, look.behind = look.behind and not ask.only_look, look.behind and ask.only_look
        others = joins and not look.running and ask.waiter.tenant not in look.tenants
        look.tenant = ask.waiter.tenant if others else look.tenant
        look.tenants.add(ask.waiter.tenant)
        look.asks[ask.waiter.ticket] = ask
        self._by_ticket[ask.waiter.ticket] = look
        # A look that stands in the line of those that no request waits for is begun once more, before them; one that
        # stands in the line of another tenant, in this one's line, too.
        return None if joins and not ((hurries or others) and not look.running) else look

    def next_due_s(self) -> float | None:
        """Clock time of the next deadline among the asks."""
        with self._lock:
            return self._due.next_s()

    def expire(self, now_s: float) -> None:
        """Answer the asks whose deadline has passed. Looks that no other ask waits for end."""
        late: list[PendingRequest] = []
        with self._lock:
            while (ticket := self._due.pop_due(now_s)) is not None:
                look = self._by_ticket.pop(ticket)
                ask = look.asks.pop(ticket)
                self._forget(ask)
                self._drop_if_unwanted(look)
                late.append(ask)
        for ask in late:
            self._found(ask, _late(ask))

    def end_session(self, session: int) -> None:
        """Refuse the requests of a client that is gone; end looks that no other request waits for."""
        refused: list[PendingRequest] = []
        with self._lock:
            for ticket in self._by_session.pop(session, ()):
                look = self._by_ticket.pop(ticket)
                refused.append(look.asks.pop(ticket))
                self._drop_if_unwanted(look)
        for ask in refused:
            ask.answer(session_ended(ask))

    def _drop_if_unwanted(self, look: _Look) -> None:
        """Drop a look that no request waits for. One that runs ends soon, unless a request joins it before. Locked."""
        if not look.asks and not look.running:
            self._give_up(look)

    def _ends(self, look: _Look) -> None:
        if self._looks.get((look.name, look.digest)) is look:
            del self._looks[look.name, look.digest]

    def _forget(self, ask: PendingRequest) -> None:
        if ask.waiter.session is not None and (tickets := self._by_session.get(ask.waiter.session)) is not None:
            tickets.discard(ask.waiter.ticket)
            if not tickets:
                del self._by_session[ask.waiter.session]

    def _is_wanted(self, look: _Look) -> bool:
        return bool(look.asks) and not self._stopped

    def refusals_by_size(
        self, look: _Look, nbytes: int, stated: Place | None
    ) -> list[tuple[PendingRequest, TrimsError]]:
        """Return the asks of a look that an image of at least `nbytes` can never serve, and why."""
        with self._lock:
            asks = list(look.asks.values())
        judged = [(ask, self._never_fits(ask, nbytes, stated)) for ask in asks]
        return [(ask, error) for ask, error in judged if error is not None]

    def refuse_by_size(self, look: _Look, nbytes: int, stated: Place | None) -> None:
        """Answer these asks with the reason. Raises NotWantedError if no other ask waits for the look."""
        for ask, error in self.refusals_by_size(look, nbytes, stated):
            with self._lock:
                waited = self._by_ticket.pop(ask.waiter.ticket, None)
                look.asks.pop(ask.waiter.ticket, None)
                self._forget(ask)
            if waited is not None:
                self._found(ask, ask.in_words(error))
        if not self._is_wanted(look):
            raise NotWantedError(f"{look.name} is too large for all who ask for it")

    def stop(self) -> list[PendingRequest]:
        """Take no more asks; returns those that were not answered. A look that hangs is left to itself."""
        with self._lock:
            self._stopped = True
            left = [look.asks[ticket] for ticket, look in self._by_ticket.items()]
            self._by_ticket.clear()
            self._by_session.clear()
            self._looks.clear()
            pools: list[Pool | PoolsByMount] = [self._sorters, self._path_sorters, self._long_reads]
            pools += self._behind_by_mount.values()
        for pool in pools if self._shares_readers else [*pools, self._readers]:
            pool.stop(drop=True, timeout_s=1.0)
        return left

    def _begin(self, look: _Look) -> None:
        """Choose workers. Where the mount point is not known at once, it is found out by workers, too."""
        where = self._resolver.where_now(look.name)
        if where is not None:
            self._look_soon(look, where)
        else:
            sorters = self._path_sorters if look.name.startswith(FILE_PREFIX) else self._sorters
            sorters.submit(lambda: self._sort(look), look.tenant)

    def _sort(self, look: _Look) -> None:
        try:
            where = self._resolver.where(look.name)
        except Exception as error:  # noqa: BLE001 - every failure is an answer
            self._end(look, _as_answer(look.name, error))
            return
        self._look_soon(look, where)

    def _look_soon(self, look: _Look, where: str, *, long: bool = False) -> None:
        with self._lock:
            if look.behind:
                pool = self._behind_by_mount.get(where)
                if pool is None:
                    pool = self._behind_by_mount[where] = self._new_pool("learn", 1, niceness=BEHIND)
            elif long:
                self._long_lines.setdefault((where, look.tenant), FairQueue()).add(look, look.session)
                pool, tenant = self._long_reads.of(where), look.tenant
            else:
                pool = self._readers.of(where)
            behind = look.behind
        if long and not behind:
            pool.submit(lambda: self._look_in_turn(where, tenant), tenant)
        else:
            pool.submit(lambda: self._look(look, where, long=behind), look.tenant)

    def _look_in_turn(self, where: str, tenant: str | None) -> None:
        """Go on with the long read of a tenant whose session's turn it is."""
        with self._lock:
            line = self._long_lines[where, tenant]
            look = line.pop()
            if not line:
                del self._long_lines[where, tenant]
        self._look(look, where, long=True)

    def _look(self, look: _Look, where: str, *, long: bool) -> None:
        with self._lock:
            if look.running or not self._is_wanted(look):
                return
            look.running = True
        behind = Behind(self._pace, lambda: not look.behind or self._stopped) if look.behind else None
        try:
            reading = Reading(
                long=long,
                digest=look.digest,
                wanted=lambda: self._is_wanted(look),
                behind=behind,
                progress=look.progress,
                sizes=_SizesOfAsks(self, look),
            )
            with span("resolve", parent=look.trace, model=look.name):
                result: Resolved | TrimsError = self._resolver.resolve(look.name, reading)
        except (LongReadError, TurnOverError):
            self._go_on_later(look, where)
            return
        except DigestNeededError:
            self._go_on_with_digest(look)
            return
        except NotWantedError:
            self._go_on_if_wanted(look, where)
            return
        except Exception as error:  # noqa: BLE001 - every failure is an answer
            result = _as_answer(look.name, error)
        self._end(look, result)

    def _go_on_later(self, look: _Look, where: str) -> None:
        with self._lock:
            look.running = False
            if not self._is_wanted(look):
                self._give_up(look)
                return
        self._look_soon(look, where, long=True)

    def _go_on_if_wanted(self, look: _Look, where: str) -> None:
        """Go on with a look that stopped, because no request waited for it, if one has joined it since."""
        with self._lock:
            look.running = False
            if not look.asks or self._stopped:
                self._give_up(look)
                return
        self._look_soon(look, where)

    def _give_up(self, look: _Look) -> None:
        """Remember how far the look's files were read. Called under the lock."""
        self._ends(look)
        kept = look.progress.keep() if self._resolver.compares else None
        if kept is not None:
            self._unfinished[look.name] = kept
            while len(self._unfinished) > _UNFINISHED:
                self._unfinished.popitem(last=False)

    def _go_on_with_digest(self, look: _Look) -> None:
        """Let all requests of a look wait for the artifact to be read, with those that wait for that already."""
        with self._lock:
            self._ends(look)
            asks = [ask for ticket, ask in look.asks.items() if self._by_ticket.get(ticket) is look]
            look.asks.clear()
            begun = [self._join(ask, digest=True) for ask in asks]
        for each in begun:
            if each is not None:
                self._begin(each)

    def _end(self, look: _Look, result: Resolved | TrimsError) -> None:
        with self._lock:
            self._ends(look)
            asks = [ask for ticket, ask in look.asks.items() if self._by_ticket.pop(ticket, None) is look]
            for ask in asks:
                self._forget(ask)
            look.asks.clear()
        for ask in asks:
            self._found(ask, result)


def _late(ask: PendingRequest) -> DeadlineError:
    return DeadlineError(
        f"the deadline passed while {ask.name!r} was being looked into, which goes on only while a request waits for "
        f"it; ask again with a later deadline, or prefetch the model first"
    )


def _as_answer(name: str, error: Exception) -> TrimsError:
    if isinstance(error, OSError):
        error = explain_descriptors(error)
    if isinstance(error, TrimsError):
        return error
    if isinstance(error, OSError):  # what the kernel says of the artifact's files
        return ArtifactError(f"{name} cannot be read: {error.strerror or error}")
    log.error("looking into %s failed", name, exc_info=error)
    return InternalError(f"{name}: {type(error).__name__}: {error}")
