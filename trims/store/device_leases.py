"""Leases on devices: what opens their memory, which sessions may still read it, and what a lost device means.

Not covered: copies to and from them (`runner`), keepers (`trims.keeper`).
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trims.core.errors import CallerError, DeviceLostError, TrimsError
from trims.core.replica import State
from trims.core.residency.events import Closed, PlaceLost, WorkspaceKnown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trims.core.lease import Lease
    from trims.core.place import Place
    from trims.core.residency.residency import Residency
    from trims.memory.cuda.drivers import Export
    from trims.store.fill.workspace import Workspaces
    from trims.store.pending_requests import Outcome
    from trims.store.shell import Shell
    from trims.tiers.base import DeviceTier

log = logging.getLogger(__name__)
#: Seconds; clients look for a new daemon at least every second.
GUARD_S = 30.0
#: Tries to get an image back whose device was lost while it was filled: the image may be the cause. With the pauses
#: between keepers, that takes some minutes.
REFILL_TRIES = 20


class DeviceLeases:
    """The leases a store has granted on devices.

    Args:
        tiers: One for each device.
        shell: Knows leases and memory.
        residency: The books; read under the shell's lock.
        workspace: What models need beside their bytes.
        have: Brings an image to a place for the store's own sake: key, place, keep-alive, callback for the outcome.
        lease: Leases exactly one image for a session: session, key, place, callback for the outcome.
    """

    def __init__(
        self,
        tiers: Iterable[DeviceTier],
        shell: Shell,
        residency: Residency,
        workspace: Workspaces,
        *,
        counters: Counter[str],
        have: Callable[[str, Place, float | None, Callable[[Outcome], None]], None],
        lease: Callable[[int, str, Place, Callable[[Outcome], None]], None],
        clock: Callable[[], float],
    ) -> None:
        self._tiers = {tier.place: tier for tier in tiers}
        self._shell = shell
        self._residency = residency
        self._workspace = workspace
        self._counters = counters
        self._have = have
        self._lease = lease
        self._clock = clock
        #: Images that were read or pinned on a device when it was lost, by image key: loaded again when it is back.
        self._missing: dict[Place, dict[str, _Refill]] = {}
        #: Number of times that each device was back.
        self._backs: Counter[Place] = Counter()
        self._guard = 0
        #: Time at which the guard of what was adopted ends, on the monotonic clock.
        self.due_s: float | None = None

    def guard_adopted(self, now_s: float) -> None:
        """Keep adopted replicas on such devices for a while: sessions of the last daemon may still read them.

        Each session takes its leases up again as soon as it notices this daemon. Until then this daemon does not know
        of them, and memory that is freed under a reader has undefined contents.
        """
        with self._shell.lock:
            places = [place for place in self._tiers if self.must_outlive(place)]
            found = [it for place in places for it in self._residency.table.by_place[place].values()]
            adopted = [(it.key, it.place) for it in found if it.state is State.SEALED]
        if adopted:
            self._guard, self.due_s = self._shell.begin_session(), now_s + GUARD_S
            for key, place in adopted:
                self._lease(self._guard, key, place, lambda _: None)

    def expire(self, now_s: float) -> None:
        """End the guard of adopted replicas once its time is over."""
        if self.due_s is not None and self.due_s <= now_s:
            self.due_s = None
            self._shell.end_session(self._guard)

    def must_outlive(self, place: Place) -> bool:
        """Return whether a session that was granted something at the place counts until its process is gone."""
        return place in self._tiers and self._tiers[place].ends_with_session

    def keeps(self, session: int, lease: int) -> bool:
        """Return whether a lease stays when the client gives it back: only the session's end proves it gone."""
        place = self._shell.place_of(session, lease) if self._tiers else None
        return place is not None and self.must_outlive(place)

    def has(self, session: int, lease: int) -> bool:
        """Return whether the session has this lease."""
        return self._shell.place_of(session, lease) is not None

    def take_back(self, session: int, lease: int) -> None:
        """End a lease whose grant was never sent: no borrower can have mapped its memory, so it ends at once."""
        self._shell.feed(Closed(at_s=self._clock(), lease=lease, session=session))

    def export_of(self, session: int, lease: int) -> Export:
        """Return the handle that opens the device's memory that a lease is for; valid while the lease is.

        Raises DeviceLostError for a lease that has ended, CallerError for one at the host.
        """
        extent = self._shell.extent_of(session, lease)
        if extent is None:
            raise DeviceLostError(
                f"lease {lease} has ended: its memory was lost with the keeper, or it was closed; open again"
            )
        if extent.export is None:
            raise CallerError(f"lease {lease} is for memory at {extent.place}: its descriptor came with the grant")
        return extent.export

    def report_workspace(self, session: int, lease: int, nbytes: int) -> int:
        """Record that a reader needed `nbytes` of the device beside the weights. Return the bytes counted from now on.

        Raises CallerError if the session has no such lease on a device, or the device is smaller than that.
        """
        extent = self._shell.extent_of(session, lease)
        if extent is None or extent.export is None:
            raise CallerError(f"session {session} has no lease {lease} on a device")
        tier = self._tiers[extent.place]
        if nbytes > tier.capacity_bytes + tier.reserve_bytes:
            raise CallerError(f"{nbytes} bytes of work do not fit beside anything at {tier.place}; nothing is changed")
        counted = self._workspace.measured(extent.key, nbytes, self._shell.image(extent.key))
        self._shell.feed(WorkspaceKnown(at_s=self._clock(), key=extent.key, nbytes=counted))
        return counted

    def subscribe_to_losses(self, notify: Callable[[Lease, str], None]) -> None:
        """Have `notify` called with each lease that ends because its memory is gone, and the reason."""
        self._shell.notices.subscribe_to_losses(notify)

    def lost(self, place: Place) -> None:
        """Notify the sessions that read on a device that its keeper has ended."""
        with self._shell.lock:
            here = list(self._residency.table.by_place[place].values())
            pins = self._residency.capacity.pins
            kept = [replica for replica in here if replica.state is State.SEALED]  # no eviction is taken back
            wanted = [each for each in kept if each.leases or (each.key, place) in pins]
        missing = self._missing.setdefault(place, {})
        for each in wanted:
            missing[each.key] = _Refill(each.key, place, each.keep_alive_s, for_pin=not each.leases)
        reason = f"the keeper of {place} has ended, and with it the memory it kept"
        self._shell.feed(PlaceLost(at_s=self._clock(), place=place, reason=reason))

    def back(self, place: Place) -> None:
        """Load the images that were read or pinned on a device when it was lost: it has a keeper again."""
        self._backs[place] += 1
        for refill in self._missing.pop(place, {}).values():
            if not refill.for_pin or (refill.key, place) in self._residency.capacity.pins:
                self._again(refill)

    def _again(self, refill: _Refill) -> None:
        refill.tries += 1
        refill.asked_in = self._backs[refill.place]
        self._counters["refills"] += 1
        self._have(refill.key, refill.place, refill.keep_alive_s, partial(self._refilled, refill))

    def _refilled(self, refill: _Refill, outcome: Outcome) -> None:
        if not isinstance(outcome, TrimsError):
            return
        log.warning("%s is not back at %s: %s", refill.key[:16], refill.place, outcome)
        if isinstance(outcome, DeviceLostError) and refill.tries < REFILL_TRIES:
            if refill.asked_in == self._backs[refill.place]:
                self._missing.setdefault(refill.place, {})[refill.key] = refill
            else:  # the next keeper was there before this outcome
                self._again(refill)


@dataclass(slots=True)
class _Refill:
    """An image that a device lost.

    Attributes:
        for_pin: No session read it: it is wanted for as long as it is pinned.
        tries: How often it was asked for.
        asked_in: How often its device had been back then.
    """

    key: str
    place: Place
    keep_alive_s: float | None
    for_pin: bool
    tries: int = 0
    asked_in: int = 0
