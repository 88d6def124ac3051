"""Opens: the way of a request from a name to its answer.

1. Resolve: the image that the name stands for, from memory if its files were looked at just now, else by a lookup.
2. Ask: residency is asked for the image, under the conditions of the request and of the manifest (`options`).
3. Answer: the shell answers when the image is there or cannot be. An answer that is not the request's fault (a broken
   replica, an artifact that has changed) sends the request through the steps once more (`again`).

Nothing here blocks. Not covered: how names are looked into (`lookups`, `resolve`), and what is decided
(`trims.core.residency.residency`).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    InUseError,
    ModelNotFoundError,
    NotInPlaceError,
    NotSupportedError,
    TooLargeError,
    TrimsError,
)
from trims.core.lease import Waiter
from trims.core.place import CLOUD, CPU, DISK, FILE, Place, TierKind
from trims.core.residency.admission import IN_PLACE_STAYS, STAYS
from trims.core.residency.events import KeepAlive, Requested
from trims.core.residency.timer_heap import TimerHeap
from trims.store.catalog import FILE_PREFIX
from trims.store.file_names import AT_IDENTITY
from trims.store.pending_requests import Outcome, Pending, PendingRequest, log_failure
from trims.store.residency_options import ResidencyOptions
from trims.store.resolve.lookups import Lookups
from trims.store.work import thread_pool

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from trims.background.rate_limit import RateLimiter
    from trims.store.fill.workspace import Workspaces
    from trims.store.pins import Pins
    from trims.store.resolve.resolved import Resolved
    from trims.store.resolve.resolver import Resolver
    from trims.store.shell import Shell
    from trims.store.work import Pools, PoolsByMount
    from trims.tiers.cloud import CloudImage

#: Names whose conditions are kept; then all are dropped, and worked out again when they are asked for.
_OPTIONS_KEPT = 4096


class Opens:
    """Requests of one store that are on their way.

    Args:
        shell: Asks residency, and answers.
        resolver: Knows what names stand for.
        pins: Records the pins that manifests state.
        workspace: Records the needs that manifests state, and knows what models need on a device.
        due_at: Called with the clock time of each deadline, so that the store looks at it then.
        keep_alive_s: Seconds that an idle replica stays, for models whose manifest states none.
        pools: Makes the workers of lookups.
        pace: Rate limiter of files that are hashed behind their readers.
        readers: Workers of lookups that are shared with others; see `Lookups`.
        know: Takes an image at an address into the books.
    """

    def __init__(
        self,
        shell: Shell,
        resolver: Resolver,
        pins: Pins,
        workspace: Workspaces,
        *,
        counters: Counter[str],
        due_at: Callable[[float], None],
        keep_alive_s: float | None = None,
        pools: Pools = thread_pool,
        pace: RateLimiter | None = None,
        readers: PoolsByMount | None = None,
        clock: Callable[[], float] = time.monotonic,
        know: Callable[[CloudImage], None] | None = None,
    ) -> None:
        self._shell = shell
        self._resolver = resolver
        self._pins = pins
        self._workspace = workspace
        self._counters = counters
        self._due_at = due_at
        self._keep_alive_s = keep_alive_s
        self._clock = clock
        self._know = know
        self._tickets = itertools.count(1)
        #: Names that are being hashed behind their readers, and those that will be once their files rest.
        self._learning: set[str] = set()
        #: Keys in place of artifacts that are too large to be hashed behind their readers.
        self._too_large: OrderedDict[str, None] = OrderedDict()
        self._resting: dict[str, float] = {}
        self._rested: TimerHeap[str] = TimerHeap(lambda at_s, name: self._resting.get(name) == at_s)
        self._resting_lock = threading.Lock()
        #: Files that cannot be read, by names that never change their meaning: programs ask for one at each start.
        self._refused: dict[str, ArtifactError] = {}
        #: Residency options, by name.
        self._options: dict[str, ResidencyOptions] = {}
        self.lookups = Lookups(resolver, self._found, pools, pace, readers=readers, never_fits=shell.never_fits)

    def open(
        self,
        name: str,
        answer: Callable[[Outcome], None],
        *,
        session: int | None = None,
        place: Place | None = None,
        deadline_s: float | None = None,
        lease: bool = True,
        tenant: str | None = None,
        verified: bool = False,
        hint: bool = False,
        avoids: Place | None = None,
    ) -> None:
        """Ask for a model. `answer` is called once: at once if it is resident, else when it is or cannot be.

        Args:
            name: A registered model, or `file:` and an absolute path.
            answer: Gets Granted, Loaded (without `lease`) or an error.
            session: The session that asks; leases need one.
            place: Where; None for what the manifest says. If that says nothing, an open is served wherever on the
                host the image lies, and a load brings it to shared memory.
            deadline_s: Seconds to wait for load and room; None waits for a load, but not for leases of others to end.
            lease: Whether a lease is wanted; if not, the model is only loaded.
            tenant: Tenant that asks; None for the daemon's own user.
            verified: Read the artifact before the answer, whatever the daemon trusts.
            hint: An open is going to follow, and waits for nothing yet. With no place, an artifact that has no image
                is made ready to be served from its own files, as that open will be: a conversion would take the
                processors from the program that is going to open it.
            avoids: A device that the session could not use; of any devices, another one serves it.
        """
        resolved = self._resolver.known(name)
        if resolved is None and name in self._resolver.references.known:
            name = self._resolver.references.fresh(name)
            resolved = self._resolver.known(name)
        deadline_at_s = None if deadline_s is None else self._clock() + deadline_s
        waiter = Waiter(next(self._tickets), session, lease, deadline_at_s, tenant=tenant, avoids=avoids)
        ask = PendingRequest(waiter, name, place, answer, verified=verified, hint=hint)
        self._counters["opens" if lease else "prefetches"] += 1
        if name.startswith(AT_IDENTITY):
            if refused := self._refused.get(name):
                answer(refused)
                return
            ask.answer = self._noting_refusal(name, answer)
        if resolved is not None and (resolved.hashed or ask.anywhere):
            self._request(ask, resolved)
            return
        self.lookups.add(ask)
        if deadline_at_s is not None:
            self._due_at(deadline_at_s)

    def load(self, name: str, place: Place | None = None, deadline_s: float | None = None) -> Pending:
        """Have a model loaded; returns what to wait on."""
        pending = Pending()
        self.open(name, pending.set, place=place, deadline_s=deadline_s, lease=False)
        return pending

    def resume(
        self, session: int, key: str, place: Place, answer: Callable[[Outcome], None], *, tenant: str | None = None
    ) -> None:
        """Lease exactly this image if it is sealed there now; never loads, and never waits.

        An image that an earlier daemon left, and that is still to be verified, is verified next. The answer is
        InUseError meanwhile: a client takes up many leases one after the other before it does anything else.
        """
        name = f"the image {key[:16]}"
        if self._shell.verify_next(key, place):
            answer(InUseError(f"{name} was left at {place} by an earlier daemon and is being verified; ask again soon"))
        elif self._shell.is_resident(key, place):
            waiter = Waiter(next(self._tickets), session, wants_lease=True, deadline_at_s=None, tenant=tenant)
            self._ask(PendingRequest(waiter, name, place, answer), key, place, None)
        else:
            answer(ModelNotFoundError(f"{name} is not resident at {place} any more; open it by name"))

    def _found(self, ask: PendingRequest, result: Resolved | TrimsError) -> None:
        """Go on with a request whose name has been looked into."""
        if ask.only_look:
            self._learning.discard(ask.name)
            if isinstance(result, TooLargeError):
                self._note_too_large(ask.name)
        if isinstance(result, TrimsError):
            self._counters[f"refused.{result.code}"] += 1
            ask.answer(result)
        elif not ask.only_look:
            self._request(ask, result)
        elif result.hashed:
            self._judge(ask, result)

    def _noting_refusal(self, name: str, answer: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        def note(outcome: Outcome) -> None:
            if type(outcome) is ArtifactError:  # one of its kinds may be mended, such as a file that is not there
                if len(self._refused) >= _OPTIONS_KEPT:
                    self._refused.clear()
                self._refused[name] = outcome
            answer(outcome)

        return note

    def _note_too_large(self, name: str) -> None:
        """Note an artifact that fits nowhere but in its own files: it is not hashed behind its readers again."""
        known = self._resolver.remembered(name)
        if known is not None and known.in_place is not None:
            self._too_large[known.in_place] = None
            while len(self._too_large) > _OPTIONS_KEPT:
                self._too_large.popitem(last=False)

    def _judge(self, ask: PendingRequest, resolved: Resolved) -> None:
        """Count opens of an artifact's files as opens of its image, once it was hashed behind its readers.

        A pin of its name moves to that image. If the image is pinned, or its opens have earned it a place in memory,
        it is copied there at once.
        """
        if resolved.in_place is None:
            return
        options = self._options_of(resolved)
        self._shell.carry_demand(resolved.in_place, resolved.key)
        if resolved.manifest.residency.place is None and not self._shell.is_resident(resolved.key, CPU):
            ask.resolved, ask.answer = resolved, _ignore
            event = Requested(
                at_s=self._clock(),
                key=resolved.key,
                place=CPU,
                waiter=ask.waiter,
                anywhere=True,
                modest=options.kept,
                in_place=resolved.in_place,
                keep=options.keep,
            )
            self._shell.ask(ask, event)

    def _learn_at_rest(self, resolved: Resolved) -> None:
        """Have an artifact hashed behind its readers, once a reading of its files is certain."""
        name, at_s = resolved.name, resolved.rests_at_s
        if at_s <= self._clock():
            self._learn(name)
            return
        with self._resting_lock:
            self._resting[name] = at_s
            self._rested.add(at_s, name)
        self._due_at(at_s)

    def next_due_s(self) -> float | None:
        """Clock time at which the next files rest that are to be hashed."""
        with self._resting_lock:
            return self._rested.next_s()

    def tick(self, now_s: float) -> None:
        """Time has passed: hash what rests by now."""
        rested = []
        with self._resting_lock:
            while (name := self._rested.pop_due(now_s)) is not None:
                del self._resting[name]
                rested.append(name)
        for name in rested:
            self._learn(name)

    def _learn(self, name: str) -> None:
        """Have an artifact hashed behind its readers: then its image can be copied to memory, and found elsewhere."""
        if name not in self._learning:
            self._learning.add(name)
            waiter = Waiter(next(self._tickets), None, wants_lease=False, deadline_at_s=None, internal=True)
            self.lookups.add(PendingRequest(waiter, name, None, log_failure(f"{name} is not hashed"), only_look=True))

    def again(self, ask: PendingRequest, error: TrimsError) -> None:
        """Look once more for a request that met a broken replica, or an artifact that is not what it was taken for.

        One that the artifact's own files cannot serve goes on to an image of them, which is known once they were read.
        """
        if isinstance(error, NotInPlaceError) and ask.resolved is not None and ask.resolved.in_place is not None:
            self._resolver.needs_conversion(ask.name, ask.resolved.in_place, str(error))
        known = ask.resolved is not None and (ask.resolved.hashed or not ask.verified)
        if isinstance(error, (ArtifactChangedError, NotInPlaceError)) or not known or ask.resolved is None:
            self._resolver.looked_stale(ask.name)
            self.lookups.add(ask)
        else:
            self._request(ask, ask.resolved)

    def _request(self, ask: PendingRequest, resolved: Resolved) -> None:
        """Ask residency for what a name stands for, under the conditions of the request and of its manifest."""
        ask.resolved, stated = resolved, ask.place or resolved.manifest.residency.place
        if stated is FILE:
            self._request_file(ask, resolved)
            return
        if stated is CLOUD:
            ask.answer(NotSupportedError(f"{resolved.name} cannot be read in the cloud; open it at cpu, disk or gpu"))
            return
        options = self._options.get(resolved.name)
        if options is None or options.resolved is not resolved:
            options = self._options_of(resolved)
        elif resolved.cloud is not None and self._know is not None and not self._shell.is_on_host(resolved.key):
            self._know(resolved.cloud)  # again, if it was found broken: what lies there may be right by now
        reads = ask.waiter.wants_lease or (ask.hint and not self._shell.is_resident(resolved.key, DISK))
        place, anywhere = stated or CPU, stated is None and reads
        read = (resolved.hashed and resolved.certain) or resolved.in_place in self._too_large
        if not read and self._resting.get(resolved.name) != resolved.rests_at_s and self._is_to_be_read(resolved):
            self._learn_at_rest(resolved)
        event = Requested(
            at_s=self._clock(),
            key=resolved.key,
            place=place,
            waiter=ask.waiter,
            anywhere=anywhere,
            modest=anywhere and options.kept,
            in_place=resolved.in_place if anywhere and not ask.verified else None,
            keep=STAYS if place is DISK else options.keep,
            workspace_bytes=self._workspace.of(resolved.key) if place.tier is TierKind.GPU else None,
        )
        if self._shell.ask(ask, event) and ask.waiter.deadline_at_s is not None:
            self._due_at(ask.waiter.deadline_at_s)

    def _is_to_be_read(self, resolved: Resolved) -> bool:
        """Return whether an artifact that was not read, or not for certain, should be read behind its readers.

        That is so for the second open of one that was never read, for the first if its source states digests that trims
        has not proven, or its name is pinned (the pin waits for the image), and for one that may have changed since it
        was read.
        """
        opened_again = not resolved.hashed and self._shell.demand_of(resolved.key) > 0
        return resolved.hashed or resolved.unproven or opened_again or self._pins.is_pinned(resolved.name)

    def _options_of(self, resolved: Resolved) -> ResidencyOptions:
        """Return a name's options; when it is first opened after a look, take note of all its manifest states."""
        if resolved.cloud is not None and self._know is not None:
            self._know(resolved.cloud)
        self._pins.stated(resolved, resolved.epoch)
        self._workspace.stated(resolved)
        options = ResidencyOptions.of(resolved, self._keep_alive_s)
        if len(self._options) >= _OPTIONS_KEPT:
            self._options.clear()
        self._options[resolved.name] = options
        return options

    def _request_file(self, ask: PendingRequest, resolved: Resolved) -> None:
        """Request the artifact's own files."""
        if resolved.in_place is None or ask.verified:
            why = "it must be read first for its tenant" if ask.verified else resolved.why_not or "its files are gone"
            ask.answer(NotInPlaceError(_not_at_file(resolved.name, why)))
        else:
            self._ask(ask, resolved.in_place, FILE, IN_PLACE_STAYS)

    def _ask(self, ask: PendingRequest, key: str, place: Place, keep: KeepAlive | None) -> None:
        workspace_bytes = self._workspace.of(key) if place.tier is TierKind.GPU else None
        event = Requested(
            at_s=self._clock(), key=key, place=place, waiter=ask.waiter, keep=keep, workspace_bytes=workspace_bytes
        )
        if self._shell.ask(ask, event) and ask.waiter.deadline_at_s is not None:
            self._due_at(ask.waiter.deadline_at_s)

    def have(self, key: str, place: Place, keep_alive_s: float | None, answer: Callable[[Outcome], None]) -> None:
        """Have an image brought to a place, for the store's own purposes."""
        waiter = Waiter(next(self._tickets), None, wants_lease=False, deadline_at_s=None, internal=True)
        ask = PendingRequest(waiter, f"key:{key[:16]}", place, answer)
        self._ask(ask, key, place, KeepAlive(keep_alive_s))


def _not_at_file(name: str, why: str) -> str:
    return f"{name.removeprefix(FILE_PREFIX)} cannot be served at file: {why}; open it without a place"


def _ignore(outcome: Outcome) -> None:
    """Ignore the outcome: no request waits for it."""
    del outcome
