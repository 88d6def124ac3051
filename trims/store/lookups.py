"""Names that are being looked into: one look for each name and epoch, and deadlines that hold meanwhile.

Looking may take minutes (a builder runs, a large file is hashed) or hang for ever (a dead network mount). So looks run
in workers, and each mount point has workers of its own: what hangs on one file system holds up no other. They are those
that read headers, too: the thread that has looked into a file goes on to its header. Paths need no registry, and do not
wait for names that do: a registry of a plug-in may be slow. Files that take long to hash have
workers apart, so that short files, and models that are known, do not wait for them. Files that are hashed behind their
readers have one worker for each mount point and a pace, until a request waits for one of them. A file that no ask waits
for any more is not read to its end. Not covered: what looking means (`resolve`).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.due import DueTimes
from trims.core.errors import ArtifactError, DeadlineError, InternalError, TrimsError
from trims.image.descriptors import explain_descriptors
from trims.store.asks import session_ended
from trims.store.catalog import FILE_PREFIX
from trims.store.pace import Behind, Pace
from trims.store.resolve import DigestNeededError, LongReadError, NotWantedError, Reading
from trims.store.work import BEHIND, PoolsByMount

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.store.asks import Ask
    from trims.store.resolve import Resolved, Resolver
    from trims.store.work import Pool, Pools

log = logging.getLogger(__name__)
#: Workers for each mount point that look, and read headers: the most threads that a hanging file system can take.
READERS = 16
#: Of them, how many long files of a mount point are hashed at once: each keeps several processors busy.
_LONG_READS = 4
#: Workers that read the registry to find out which mount point a name belongs to.
_SORTERS = 2


@dataclass(slots=True, eq=False)
class _Look:
    """A look that is running, and the asks it answers.

    Attributes:
        digest: Whether the files must be read, if their digests are not known.
        dropped: All its asks were of clients that are gone. One whose asks only ran out of time goes on.
        behind: No request waits for it, only the store itself.
        running: A worker has begun it.
        tenant: In whose line it was put last.
        tenants: In whose lines it stands; None stands for those without a tenant.
    """

    name: str
    epoch: int
    digest: bool
    asks: dict[int, Ask] = field(default_factory=dict)
    dropped: bool = False
    behind: bool = False
    running: bool = False
    tenant: str | None = None
    tenants: set[str | None] = field(default_factory=set)


class Lookups:
    """All looks that are running.

    Args:
        resolver: Looks.
        found: Called from a worker, once for each ask, with what was found or the error.
        pools: Makes the workers.
        pace: Of files that no request waits for; by default without a limit.
        readers: Workers that look, shared with others that read headers, and not stopped here; by default its own.
    """

    def __init__(
        self,
        resolver: Resolver,
        found: Callable[[Ask, Resolved | TrimsError], None],
        pools: Pools,
        pace: Pace | None = None,
        readers: PoolsByMount | None = None,
    ) -> None:
        self._pace = pace or Pace()
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
        self._due: DueTimes[int] = DueTimes(lambda _, ticket: ticket in self._by_ticket)
        self._sorters = pools("names", _SORTERS)
        self._path_sorters = pools("paths", 1)
        self._behind_by_mount: dict[str, Pool] = {}
        self._long_reads = PoolsByMount(pools, "hash", _LONG_READS)
        self._stopped = False

    def add(self, ask: Ask) -> None:
        """Have the name looked into, or join the look that is running. Never blocks."""
        with self._lock:
            look = self._join(ask, digest=not (ask.anywhere and self._resolver.in_place))
            if ask.waiter.session is not None and ask.waiter.wants_lease:
                self._by_session.setdefault(ask.waiter.session, set()).add(ask.waiter.ticket)
            if ask.waiter.deadline_at_s is not None:
                self._due.add(ask.waiter.deadline_at_s, ask.waiter.ticket)
        if look is not None:
            self._begin(look)

    def _join(self, ask: Ask, *, digest: bool) -> _Look | None:
        """Let the ask wait for a look; returns that if it is to be begun. Called under the lock."""
        look = self._looks.get((ask.name, digest))
        # A lookup of an earlier epoch goes on for its own asks; this ask must not get its answer.
        joins = look is not None and look.epoch == self._resolver.epoch(ask.name)
        if look is None or not joins:
            look = self._looks[ask.name, digest] = _Look(ask.name, self._resolver.epoch(ask.name), digest)
            look.behind, look.tenant = ask.only_look, ask.waiter.tenant
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
        """Answer the asks whose deadline has passed; their looks go on."""
        late: list[Ask] = []
        with self._lock:
            while (ticket := self._due.pop_due(now_s)) is not None:
                ask = self._by_ticket.pop(ticket).asks.pop(ticket)
                self._forget(ask)
                late.append(ask)
        for ask in late:
            error = DeadlineError(f"the deadline passed while {ask.name!r} was being looked into; ask again")
            self._found(ask, error)

    def end_session(self, session: int) -> None:
        """The client is gone: its asks are refused, and looks that no other ask waits for end."""
        refused: list[Ask] = []
        with self._lock:
            for ticket in self._by_session.pop(session, ()):
                look = self._by_ticket.pop(ticket)
                refused.append(look.asks.pop(ticket))
                look.dropped = not look.asks
                if look.dropped:
                    self._ends(look)
        for ask in refused:
            ask.answer(session_ended(ask))

    def _ends(self, look: _Look) -> None:
        """No ask joins it any more."""
        if self._looks.get((look.name, look.digest)) is look:
            del self._looks[look.name, look.digest]

    def _forget(self, ask: Ask) -> None:
        if ask.waiter.session is not None and (tickets := self._by_session.get(ask.waiter.session)) is not None:
            tickets.discard(ask.waiter.ticket)
            if not tickets:
                del self._by_session[ask.waiter.session]

    def _is_wanted(self, look: _Look) -> bool:
        return not (look.dropped or self._stopped)

    def stop(self) -> list[Ask]:
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
            else:
                pool = (self._long_reads if long else self._readers).of(where)
            long = long or look.behind
        pool.submit(lambda: self._look(look, where, long=long), look.tenant)

    def _look(self, look: _Look, where: str, *, long: bool) -> None:
        with self._lock:
            if look.running or not self._is_wanted(look):
                return
            look.running = True
        behind = Behind(self._pace, lambda: not look.behind or self._stopped) if look.behind else None
        try:
            reading = Reading(long=long, digest=look.digest, wanted=lambda: self._is_wanted(look), behind=behind)
            result: Resolved | TrimsError = self._resolver.resolve(look.name, reading)
        except LongReadError:
            look.running = False
            self._look_soon(look, where, long=True)
            return
        except DigestNeededError:
            self._go_on_with_digest(look)
            return
        except NotWantedError:
            return
        except Exception as error:  # noqa: BLE001 - every failure is an answer
            result = _as_answer(look.name, error)
        self._end(look, result)

    def _go_on_with_digest(self, look: _Look) -> None:
        """All asks of a look wait for the artifact to be read, together with those that wait for that already."""
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


def _as_answer(name: str, error: Exception) -> TrimsError:
    if isinstance(error, OSError):
        error = explain_descriptors(error)
    if isinstance(error, TrimsError):
        return error
    if isinstance(error, OSError):  # what the kernel says of the artifact's files
        return ArtifactError(f"{name} cannot be read: {error.strerror or error}")
    log.error("looking into %s failed", name, exc_info=error)
    return InternalError(f"{name}: {type(error).__name__}: {error}")
