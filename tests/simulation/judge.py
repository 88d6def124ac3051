"""The judge: books of its own, kept from what crosses the borders of the store, never from the store's own sums.

It sees memory come and go at the tiers, requests and answers at the door, and the reports that operators got. So it
cannot agree with a mistake in the code's own books.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trims.core.place import DISK, FILE, Place, TierKind
from trims.core.policy.quotas import MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.residency.events import Changed
    from trims.tenants import Tenant
    from trims.tiers.base import Extent

    from .files import SimTier

#: Seconds for which the store may trust that an artifact's file is the one it looked at last.
TRUST_S = 0.5


class ViolationError(AssertionError):
    """A rule was broken."""


@dataclass(slots=True)
class Meaning:
    """Content that a name stood for during some time; None for no model."""

    content: str | None
    begin_s: float
    end_s: float = float("inf")


@dataclass(slots=True)
class Asked:
    """A request that waits for its answer."""

    client: int
    kind: str
    name: str
    at_s: float
    deadline_s: float | None


@dataclass(slots=True)
class HeldLease:
    """A lease that a client holds."""

    session: int
    label: str
    place: Place
    key: str


@dataclass
class Judge:
    """Judge of one run, with all that is known of it.

    Attributes:
        sizes: Bytes of each content's image.
        keys: Image key of each content.
        clock: The virtual clock.
        conversions: Conversions that hold something now.
        foul: Shared memory that was changed before the daemon that runs was started.
        stuck: Memory that could not be given back, once at least.
        tenants: Of each client that belongs to one.
        codes: Of the last refusal of each client.
        in_door: The door's thread is at work: it must not look at any file.
    """

    sizes: dict[str, int]
    keys: dict[str, str]
    clock: Callable[[], float]
    conversions: int = 0
    names: dict[str, list[Meaning]] = field(default_factory=dict)
    asked: dict[tuple[int, int], Asked] = field(default_factory=dict)
    leases: dict[int, HeldLease] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)
    pins: dict[tuple[str, Place], str] = field(default_factory=dict)
    contents: dict[tuple[str, str], str] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)
    foul: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    tenants: dict[int, Tenant] = field(default_factory=dict)
    draining: bool = False
    in_door: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    codes: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_key = {key: content for content, key in self.keys.items()}

    # -- artifacts -------------------------------------------------------------------------------------------------

    def content_of_file(self, data: bytes) -> str:
        """The content that an artifact's bytes stand for."""
        return data.rsplit(b"=", 1)[-1].decode()

    def size_of_file(self, data: bytes) -> int:
        """Bytes of the image of an artifact."""
        return self.sizes[self.content_of_file(data)]

    def now_means(self, name: str, content: str | None, *, grace_s: float = 0.0) -> None:
        """Let a name stand for something else from now on; its last content may be granted for a grace."""
        self.pins = {pin: key for pin, key in self.pins.items() if pin[0] != name}
        history = self.names.setdefault(name, [])
        if history:
            history[-1].end_s = min(history[-1].end_s, self.clock() + grace_s)
        history.append(Meaning(content, self.clock()))

    def check(self, holds: bool, rule: str) -> None:
        """Raise ViolationError unless it holds. It is kept, too: a worker would turn it into an answer."""
        if not holds:
            self.broken.append(rule)
            raise ViolationError(rule)

    def looks(self, what: str) -> None:
        """The store looks at a file or a database."""
        self.check(not self.in_door, f"the door's thread {what}")

    # -- memory ----------------------------------------------------------------------------------------------------

    def creates(self, tier: SimTier, key: str, nbytes: int) -> None:
        """Memory is given at a tier."""
        unit = 8 if tier.place.tier is TierKind.GPU else 1
        taken = tier.held_bytes() + -(-nbytes // unit) * unit
        self.check(taken <= tier.capacity_bytes, f"{tier.place}: {taken} bytes given of {tier.capacity_bytes}")
        self.check(nbytes == self.sizes[self.by_key[key]], f"{key[:8]} was filled with another size")
        twins = [each for each in tier.drafts if each.startswith(key[:8])]
        self.check(not twins, f"{key[:8]} is filled at {tier.place} twice at once")
        known = tier.extents.keys() - self.stuck
        there = [label for label, held in tier.sealed.items() if held[1] == key and label in known]
        self.check(not there, f"{key[:8]} is filled at {tier.place} and lies there already")

    def seals(self, tier: SimTier, key: str, content: str) -> None:
        """Memory is sealed: it must be the image the key stands for. A changed source must have been found out."""
        right = f"image of {self.by_key[key]}"
        from_cloud = f"{right} flipped"  # which is hashed behind its readers
        self.check(content in (right, from_cloud), f"{tier.place}: sealed {content!r} as {self.by_key[key]!r}")

    def frees(self, tier: SimTier, extent: Extent) -> None:
        """Memory is given back: no client may hold it."""
        held = [number for number, lease in self.leases.items() if lease.label == extent.label]
        self.check(not held, f"{extent.label} at {tier.place} is freed under the leases {held}")

    def changed(self, change: Changed) -> None:
        """A replica changed state."""
        for_room = change.why in ("evicted for room", "keep-alive over", "eager reclaim")
        pinned = any(key == change.key and place == change.place for (_, place), key in self.pins.items())
        self.check(not (for_room and pinned), f"a pinned replica went from {change.place}: {change.why}")

    # -- requests and answers --------------------------------------------------------------------------------------

    def asks(self, client: int, request: int, asked: Asked) -> None:
        """The daemon has read a request that will be answered."""
        self.asked[client, request] = asked

    def granted(self, client: int, message: dict[str, Any], extent: Extent, content: str) -> Asked:
        """A request was answered with a lease."""
        asked = self.answered(client, message["id"])
        number = message["lease"]
        self.check(number not in self.numbers, f"lease {number} was granted before, perhaps in another life")
        self.numbers.add(number)
        self.check(message["key"] == extent.key, "granted the memory of another image")
        read = self.by_key.get(extent.key) if extent.place is not FILE else content.removeprefix("image of ")
        self.check("flipped" in content or content == f"image of {read}", f"granted {content!r}")
        self.check(extent.label not in self.foul, f"{extent.label} was changed while no daemon ran, and is granted")
        if asked.kind == "open":
            self._check_meaning(asked, str(read))
        self.leases[number] = HeldLease(client, extent.label, extent.place, extent.key)
        if client in self.tenants:
            self._check_quota(self.tenants[client])
        return asked

    def _check_quota(self, tenant: Tenant) -> None:
        """Check that the clients of a tenant hold no more than its quota."""
        held = [each for each in self.leases.values() if self.tenants.get(each.session) is tenant]
        images = {(each.key, each.place) for each in held if each.place.tier in MEMORY}
        leased_bytes = sum(self.sizes[self.by_key[key]] for key, _ in images)
        quota = tenant.quota
        self.check(len(held) <= (quota.leases or 0), f"{tenant.name} has {len(held)} leases")
        self.check(leased_bytes <= (quota.leased_bytes or 0), f"{tenant.name} leases {leased_bytes} bytes")

    def _check_meaning(self, asked: Asked, content: str) -> None:
        now = self.clock()
        meant = [each.content for each in self.names[asked.name] if each.begin_s <= now and each.end_s >= asked.at_s]
        self.check(content in meant, f"{asked.name} was granted as {content}, it stood for {meant} since it was asked")

    def answered(self, client: int, request: int) -> Asked:
        """A request was answered."""
        self.check(
            (client, request) in self.asked, f"request {request} of client {client} was answered twice, or never made"
        )
        return self.asked.pop((client, request))

    def refused(self, client: int, request: int, code: str, message: str) -> None:
        """A request was answered with an error."""
        asked = self.answered(client, request)
        self.counts[f"refused {code}"] += 1
        self.codes[client] = code
        bug = code in ("internal", "invalid_transition", "invariant") and "Input/output error" not in message
        self.check(not bug, f"{asked.kind} of {asked.name}: {message}")
        in_time = asked.deadline_s is None or self.clock() >= asked.at_s + asked.deadline_s
        self.check(code != "deadline" or in_time, "a deadline passed before its time")
        patient = (asked.deadline_s is not None and not message.startswith("no room at")) or in_time
        self.check(patient or code != "capacity", f"not waited as long as was said: {message}")
        self.check("stopped" not in message, f"a request was refused for work that was superseded: {message}")

    def upgraded(self, session: int, key: str) -> list[int]:
        """Return the leases that a session holds at the worse place, once its image lies at a better one.

        The session was notified. There are none if the grant is not sent yet, or if it has given them back meanwhile.
        """
        return [
            number
            for number, held in self.leases.items()
            if (held.session, held.key, held.place) == (session, key, DISK)
        ]

    def closed(self, session: int, lease: int) -> None:
        """The daemon has read that a client gives a lease back."""
        held = self.leases.get(lease)
        if held is not None and held.session == session:
            del self.leases[lease]

    def lost(self, lease: int) -> None:
        """The store says that the memory of a lease is gone."""
        self.leases.pop(lease, None)

    def ended(self, session: int) -> None:
        """A client has gone: it holds nothing and waits for nothing."""
        self.leases = {number: lease for number, lease in self.leases.items() if lease.session != session}
        self.asked = {where: asked for where, asked in self.asked.items() if where[0] != session}

    # -- quiet moments ---------------------------------------------------------------------------------------------

    def at_rest(self) -> None:
        """No work is under way: a request without a deadline has its answer, whatever readers do."""
        waiting = [asked for asked in self.asked.values() if asked.deadline_s is None]
        self.check(not waiting, f"nothing is under way, and these wait without a deadline: {waiting}")

    def overdue(self) -> None:
        """Time was kept: no request waits beyond its deadline."""
        late = [
            asked
            for asked in self.asked.values()
            if asked.deadline_s is not None and asked.at_s + asked.deadline_s < self.clock() - 0.001
        ]
        self.check(not late, f"these wait beyond their deadline: {late}")
