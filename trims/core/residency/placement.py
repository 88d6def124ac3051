"""Choices for requests that name no place, or no device: where they are served, and what is worth room in memory.

An open that names no place is served from where the image lies: shared memory first, else its file on disk, else the
artifact's own files if their bytes are as an image has them; the session maps either. A copy into shared memory is
earned by use: it takes room that is free, or that of images which together are worth less. Worth is demand (see
`demand`) times the seconds that one more open costs if the image is not in memory. Comparing with what would have to go
is TinyLFU's admission (Einziger, Friedman and Manes, ACM Transactions on Storage 13(4), 2017); this differs in weighing
costs, and in comparing with all that would go, because images differ in size.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from trims.core.place import CPU, DISK, FILE, GPU, TierKind
from trims.core.policy.capacity import usage_of
from trims.core.replica import Replica, State
from trims.core.residency.promotion import HOSTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trims.core.place import Place
    from trims.core.residency.ledger import Ledger

#: Seconds that an open of a file on disk costs more than one of shared memory: its pages have to be faulted in.
DISK_MISS_S = 0.01
#: An image must be worth this many times what it displaces, so that images in equal demand do not displace each other
#: in turn.
MARGIN = 1.25
#: Demand from which an image is copied from disk into shared memory: the second of two opens close to each other.
EARNED = 1.5
_COMING = (State.FILLING, State.QUEUED)


def best_place(ledger: Ledger, key: str, *, kept: bool) -> Place:
    """Return where an open that names no place is served: where the image lies, else where it comes, else where it can.

    Args:
        kept: Whether the image is kept on disk in any case, so it may be brought there.
    """
    there = ledger.table.by_key.get(key, {})
    for states in ((State.SEALED,), _COMING):
        for place in HOSTS:
            replica = there.get(place)
            if replica is not None and replica.state in states:
                return place
    places = [place for place in HOSTS if place in ledger.capacity.at and (kept or place is CPU)]
    absent = [place for place in places if place not in there]  # a replica that leaves must be gone first
    return (absent or places or [CPU])[0]


def devices(ledger: Ledger, key: str, workspace_bytes: int, avoids: Place | None = None) -> list[Place]:
    """Return the devices where an image can be served, best first; the first device, which is not there, if none is.

    1. One where the image lies is best, of several the one with the fewest readers; then one where it comes.
    2. Then those with room for it, most room first, and those where least would have to be evicted. While its size is
       unknown, it takes none.
    3. One that it leaves just now, or that is too small, comes last, and after it the one that the session avoids.
    """
    found = [place for place in ledger.capacity.at if place.tier is TierKind.GPU]
    there = ledger.table.by_key.get(key, {})
    nbytes = max((replica.nbytes for replica in there.values()), default=0)

    def rank(place: Place) -> tuple[int, int, int]:
        replica, books = there.get(place), ledger.capacity.at[place]
        wanted = Replica(key, place, 0, nbytes=nbytes, workspace_bytes=workspace_bytes)
        missing = books.need_of(wanted) - books.coming_bytes
        if place is avoids:
            return 5, 0, place.device
        if replica is not None and replica.state is State.SEALED:
            return 0, len(replica.leases), place.device
        if replica is not None and replica.state in _COMING:
            return 1, 0, place.device
        if replica is not None or books.least_need_of(wanted) > books.stated_bytes:
            return 4, 0, place.device
        return (2, missing, place.device) if missing <= 0 else (3, missing, place.device)

    return sorted(found, key=rank) if len(found) > 1 else found or [GPU]


def is_sealed(ledger: Ledger, key: str, place: Place) -> bool:
    """Return whether the image may be read at the place now."""
    replica = ledger.table.find(key, place)
    return replica is not None and replica.state is State.SEALED


class Verdict(Enum):
    """Verdict whether an image should be copied from a file into shared memory; the value says why."""

    NO_MEMORY = "there is no shared memory"
    THERE = "it is there"
    COMING = "it is on its way"
    LEAVING = "it is on its way out of there, and serves no new reader"
    NOT_READ = "it is read from no file now"
    NOT_HASHED = "its artifact was not hashed yet; its second open has that done"
    RARELY_OPENED = "it is not opened often enough"
    TOO_LARGE = "it is larger than shared memory"
    NO_ROOM = "all that lies there is being read or filled, or is pinned"
    NOT_WORTH_IT = "what would have to go is in more demand"
    FAILED = "its conversion failed"
    PUT_OFF = "its last copy failed"
    EARNED = "its use has earned it"


def verdict(ledger: Ledger, key: str, in_place: str | None = None) -> Verdict:
    """Judge an image that is read from a file.

    Args:
        key: The image. If its artifact was not hashed yet, that is `in_place`, and it cannot be copied.
        in_place: The key under which the artifact's own files are served, if they can be.
    """
    if CPU not in ledger.capacity.at:
        return Verdict.NO_MEMORY
    there = ledger.table.find(key, CPU)
    if there is not None:
        return Verdict.THERE if there.state is State.SEALED else _on_its_way(there)
    read = ledger.table.find(key, DISK) or (ledger.table.find(in_place, FILE) if in_place else None)
    if read is None or read.state is not State.SEALED:
        return Verdict.NOT_READ
    return Verdict.NOT_HASHED if key == in_place else _worth_a_copy(ledger, key, read.nbytes)


def may_be_tried(ledger: Ledger, key: str, in_place: str | None, at_s: float) -> bool:
    """Return whether an image that is read from a file has earned a copy in memory, and no failure holds that back."""
    worthy = verdict(ledger, key, in_place) in (Verdict.EARNED, Verdict.FAILED, Verdict.PUT_OFF)
    return worthy and not ledger.failures.hold_back(key, at_s)


def _on_its_way(replica: Replica) -> Verdict:
    return Verdict.COMING if replica.state in _COMING or replica.waiters else Verdict.LEAVING


def _worth_a_copy(ledger: Ledger, key: str, nbytes: int) -> Verdict:
    """Judge an image that can be copied to memory."""
    books, pinned = ledger.capacity.at[CPU], (key, CPU) in ledger.capacity.pins
    if ledger.demand.of(key) < EARNED and not pinned:
        return Verdict.RARELY_OPENED
    if books.takes(nbytes) > books.stated_bytes:
        return Verdict.TOO_LARGE
    missing = books.takes(nbytes) - books.coming_bytes
    if missing > books.evictable_bytes(spare_promised=True):
        return Verdict.NO_ROOM
    if missing > 0 and not pinned and not is_worth_room(ledger, key, missing):
        return Verdict.NOT_WORTH_IT
    failure = ledger.failures.of(key)
    if failure is None:
        return Verdict.EARNED
    return Verdict.PUT_OFF if failure.error.retryable else Verdict.FAILED


def is_worth_room(ledger: Ledger, key: str, missing: int) -> bool:
    """Return whether an image is worth more than the idle ones that would leave memory for it, in the policy's order.

    Args:
        ledger: The books; they are as they were when this returns.
        missing: Bytes that have to come free.
    """
    policy, mine = ledger.capacity.at[CPU].policy, ledger.demand.of(key) * DISK_MISS_S / MARGIN
    victims: list[Replica] = []
    try:
        while missing > 0 and mine > 0:
            first = policy.first()
            if first is None:
                return False
            victim = ledger.table.replicas[first, CPU]
            policy.busy(first)
            victims.append(victim)
            missing -= victim.charged_bytes
            mine -= _worth(ledger, victim)
    finally:
        for victim in victims:
            policy.idle(usage_of(victim))
    return missing <= 0 and mine > 0


def is_worth_more(ledger: Ledger, key: str, victims: Iterable[Replica]) -> bool:
    """Return whether an image is worth more in memory than all victims together, by `MARGIN`."""
    return ledger.demand.of(key) * DISK_MISS_S / MARGIN > sum(_worth(ledger, victim) for victim in victims)


def may_pay(ledger: Ledger, tenant: str | None, key: str) -> bool:
    """Return whether a tenant's quota allows an image on disk in memory, too; its size may be unknown."""
    if tenant is None:
        return True
    read, account = ledger.table.find(key, DISK), ledger.tenancy.accounts[tenant]
    nbytes = 0 if read is None else read.nbytes
    return account.can_have(CPU, nbytes) and account.may_ever_lease(nbytes)


def _worth(ledger: Ledger, replica: Replica) -> float:
    """Return the seconds that a replica's place in memory saves the opens to come, as far as demand foretells them."""
    mapped = replica.mappable or is_sealed(ledger, replica.key, DISK)
    return ledger.demand.of(replica.key) * (DISK_MISS_S if mapped else max(replica.cost_s, DISK_MISS_S))
