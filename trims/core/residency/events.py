"""Events that can happen to residency, and instructions that residency gives the store.

Events are fed to `Residency.handle`; it returns instructions. The store carries each out and reports the outcome as
another event. `at_s` is the time on the store's monotonic clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trims.core.records import event_record, record

if TYPE_CHECKING:
    from trims.core.errors import TrimsError
    from trims.core.lease import Lease, Waiter
    from trims.core.place import Place
    from trims.core.replica import State


@record
class KeepAlive:
    """Time that an idle replica stays.

    Attributes:
        seconds: 0 not at all (eager), None until the room is needed (lazy).
    """

    seconds: float | None


@event_record
class Event:
    """Something happened at `at_s`."""

    at_s: float


@event_record
class Requested(Event):
    """A waiter wants a replica: to lease it (open) or just to have it there (prefetch, pin, write-back).

    Attributes:
        anywhere: Whether it names no place: it is served where on the host the image lies. `place` is where to bring an
            image that lies nowhere.
        modest: Whether the image of such a waiter is kept on disk in any case, so it may be served there if memory has
            no room.
        in_place: Key under which the artifact's own files can be served to such a waiter; None if they cannot.
        keep: How long the replica stays at `place` once it is idle; None leaves that as it is.
        workspace_bytes: What each session that reads it on a device needs there beside it; None if that is unknown.
    """

    key: str
    place: Place
    waiter: Waiter
    anywhere: bool = False
    modest: bool = False
    in_place: str | None = None
    keep: KeepAlive | None = None
    workspace_bytes: int | None = None


@event_record
class Closed(Event):
    """A session closed a lease. Closing twice, or another session's lease, changes nothing."""

    lease: int
    session: int


@event_record
class SessionEnded(Event):
    """A client went away, however it went: its leases close and it waits no longer."""

    session: int


@event_record
class WaiterLeft(Event):
    """A waiter gave up."""

    ticket: int


@event_record
class Measured(Event):
    """A measurement ended: planning the conversion has found the image's size. Counts only while it is running.

    Attributes:
        descriptors: How many the replica will take: one for each file.
    """

    key: str
    place: Place
    generation: int
    measurement: int
    nbytes: int
    descriptors: int = 1


@event_record
class MeasureFailed(Event):
    """A measurement failed, or was given up. Counts only while it is running: it never ends a fill."""

    key: str
    place: Place
    generation: int
    measurement: int
    error: TrimsError


@event_record
class Filled(Event):
    """A fill is sealed; it took `cost_s` seconds. Counts only while the replica is being filled."""

    key: str
    place: Place
    generation: int
    cost_s: float


@event_record
class FillFailed(Event):
    """A fill failed, and its memory is given back. Counts only while the replica is being filled."""

    key: str
    place: Place
    generation: int
    error: TrimsError


@event_record
class Freed(Event):
    """The tier confirms that the replica's memory is given back. Counts only while it is being freed."""

    key: str
    place: Place
    generation: int


@event_record
class EvictRequested(Event):
    """The replica is to go. With `drain`, leases may run out first; without, they refuse the eviction."""

    key: str
    place: Place
    drain: bool


@event_record
class ReplicaBroken(Event):
    """The replica's bytes are gone or wrong: it gets no new lease, and is freed after the last one."""

    key: str
    place: Place
    generation: int
    reason: str


@event_record
class PlaceLost(Event):
    """The process that kept a place's memory has ended: its sealed replicas are gone under their readers."""

    place: Place
    reason: str


@event_record
class MemoryShort(Event):
    """The machine, or a limit that was lowered, has too little memory for what it holds at a place already."""

    place: Place
    missing_bytes: int


@event_record
class WorkspaceKnown(Event):
    """The bytes that each reader of an image needs on a device, beside the image, became known."""

    key: str
    nbytes: int


@event_record
class ManifestChanged(Event):
    """A name that stood for an image has another manifest."""

    key: str


@event_record
class PinChanged(Event):
    """Pin or unpin: a pinned replica is not evicted for room, nor by keep-alive."""

    key: str
    place: Place
    pinned: bool


@event_record
class Adopted(Event):
    """A restarted daemon found a sealed replica, or one was found in other machines' keeping.

    Attributes:
        descriptors: How many it takes: none where the daemon holds no bytes of it.
        why: What is to stand in its history.
        verified: Whether its bytes are known to be right. If not, the replica is as one that is being filled until a
            check of its bytes ends in Filled or FillFailed.
    """

    key: str
    place: Place
    nbytes: int
    cost_s: float = 0.0
    keep_alive_s: float | None = None
    verified: bool = True
    descriptors: int = 1
    why: str = "adopted after a restart"


@event_record
class DrainRequested(Event):
    """From now on new requests are refused; leases run on."""


@event_record
class Tick(Event):
    """Time has passed: deadlines and keep-alives may be due."""


class Grant(NamedTuple):
    """Answer an open with a lease. `warm`: the replica was resident when the open came."""

    ticket: int
    lease: Lease
    nbytes: int
    warm: bool


class Ready(NamedTuple):
    """Answer a prefetch: the replica is there."""

    ticket: int
    key: str
    place: Place
    nbytes: int


class Refuse(NamedTuple):
    """Answer a waiter with an error."""

    ticket: int
    error: TrimsError


class Measure(NamedTuple):
    """Plan the conversion of the artifact; answer with Measured or MeasureFailed and the measurement's number.

    `behind`: see `Fill`.
    """

    key: str
    place: Place
    generation: int
    measurement: int
    behind: bool
    tenant: str | None = None


class Fill(NamedTuple):
    """Fill the replica from `source`, or from the planned conversion if None; answer with Filled or FillFailed.

    `behind`: no request waits for it, only the store or residency itself. `RaisePriority` says when one does. `tenant`:
    whose request came first.
    """

    key: str
    place: Place
    generation: int
    source: Place | None
    nbytes: int
    behind: bool
    tenant: str | None = None


class RaisePriority(NamedTuple):
    """A request waits now for what none waited for: a measurement, a fill, or room that it keeps. Expects no answer."""

    key: str
    place: Place
    generation: int


class Abandon(NamedTuple):
    """The last waiter of this queued replica left: drop a planned conversion. No answer is expected."""

    key: str
    place: Place
    generation: int


class Free(NamedTuple):
    """Give the replica's memory back; answer with Freed. `evicted`: it was chosen to make room."""

    key: str
    place: Place
    generation: int
    evicted: bool


class Lost(NamedTuple):
    """Notify a session that a lease of its has ended: the memory is no longer the store's."""

    lease: Lease
    reason: str


class Failed(NamedTuple):
    """Log that an image could not be made behind its readers; `again_in_s` seconds pass before the next attempt."""

    key: str
    place: Place
    error: TrimsError
    again_in_s: float


class Changed(NamedTuple):
    """Report to watchers that a replica changed state."""

    at_s: float
    key: str
    place: Place
    generation: int
    old: State
    new: State
    why: str


#: Every instruction to the store. Named tuples: an open makes about ten, and a frozen dataclass takes thrice as long.
Instruction = Grant | Ready | Refuse | Measure | Fill | RaisePriority | Abandon | Free | Lost | Failed | Changed
