"""Reading the books of residency: messages with numbers, and the check of every invariant.

Nothing here changes anything. `validate` recomputes from the replicas what `Residency` keeps as running figures.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trims.core.errors import CapacityError, InUseError, InvariantError, NotSupportedError, TooLargeError
from trims.core.policy import Usage
from trims.core.replica import CHARGED, LEASABLE, Replica, State
from trims.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trims.core.place import Place
    from trims.core.residency import Residency
    from trims.core.room import Room


def usage(replica: Replica) -> Usage:
    """What a policy may know of the replica."""
    return Usage(
        key=replica.key,
        nbytes=max(replica.nbytes, 1),
        cost_s=replica.cost_s,
        uses=replica.uses,
        filled_at_s=replica.filled_at_s,
        last_used_s=replica.last_used_s,
    )


def too_large(room: Room, replica: Replica) -> TooLargeError:
    """The image exceeds the whole tier."""
    capacity, beside = room.capacities[replica.place], room.least_need_of(replica) - replica.nbytes
    work = f", and {format_bytes(beside)} more than the reserve for whoever reads it" if beside else ""
    return TooLargeError(
        f"the image takes {format_bytes(replica.nbytes)} ({replica.nbytes} bytes){work}; the {replica.place} tier has "
        f"a capacity of {format_bytes(capacity)} in all; raise the tier's capacity"
    )


def capacity_error(room: Room, replica: Replica, replicas: Iterable[Replica]) -> CapacityError:
    """No room, with the numbers that explain why."""
    place = replica.place
    here = [other for other in replicas if other.place == place and other.state in CHARGED]

    def taken(those: Iterable[Replica]) -> int:
        return sum(room.takes(place, each.nbytes) for each in those)

    leased = taken(other for other in here if other.held)
    pinned = taken(other for other in here if (other.key, other.place) in room.pins and not other.held)
    filling = taken(other for other in here if other.state is State.FILLING)
    free, capacity = room.free_bytes(place), room.capacities[place]
    working = room.working_over(place)
    work = f", {working} kept for the work of those who read" if working else ""
    return CapacityError(
        f"no room at {place}: {room.need_of(replica)} bytes needed, {free} free of {capacity}; {leased} leased, "
        f"{pinned} pinned, {filling} being filled{work}. Nothing was evicted. Close readers, unpin, raise the "
        f"capacity, or set a deadline to wait for room"
    )


def no_such_place(place: Place, capacities: Mapping[Place, int]) -> NotSupportedError:
    """The daemon has no tier there."""
    known = ", ".join(str(known) for known in capacities)
    return NotSupportedError(f"this daemon has no tier {place}; it has {known}")


def why_in_use(replica: Replica) -> str:
    """A sentence for InUseError."""
    if replica.state is not State.SEALED and replica.state is not State.DRAINING:
        return f"the replica at {replica.place} is {replica.state.value}"
    return (
        f"the replica at {replica.place} has {len(replica.leases)} lease(s) and {len(replica.borrowers)} running "
        f"copies; close them, or evict with drain"
    )


def going(replica: Replica) -> InUseError:
    """It leaves once nobody reads it, and comes again after that."""
    return InUseError(
        f"the model is being evicted from {replica.place} and waits for its last reader; set a deadline to wait for it"
    )


def why_late(replica: Replica) -> str:
    """A sentence for DeadlineError."""
    what = "the load goes on, ask again" if replica.state is State.FILLING else "ask again, and wait longer"
    return (
        f"the deadline passed while the replica at {replica.place} was {replica.state.value} "
        f"({format_bytes(replica.nbytes)}); {what}"
    )


def validate(residency: Residency, queues: Mapping[Place, Sequence[Replica]]) -> None:
    """Check everything against everything. Raises InvariantError naming the first broken rule."""
    _validate_index(residency)
    for (key, place), replica in residency.replicas.items():
        _check(replica.key == key and replica.place == place, replica, "filed under another name")
        _check_replica(residency, replica)
        queued = any(replica is other for other in queues[place])
        _check(queued == (replica.state is State.QUEUED), replica, "queue and state disagree")
    _validate_capacity(residency)
    _validate_people(residency)


def _validate_index(residency: Residency) -> None:
    by_key: dict[str, dict[Place, Replica]] = {}
    for (key, place), replica in residency.replicas.items():
        by_key.setdefault(key, {})[place] = replica
    indexed = residency.shelf.by_key
    for key in sorted(by_key.keys() | indexed.keys()):
        there, found = by_key.get(key), indexed.get(key)
        if there != found:
            raise InvariantError(f"{key[:16]} lies at {_tell(there)}, the index by key has it at {_tell(found)}")


def _tell(places: Mapping[Place, Replica] | None) -> str:
    if places is None:
        return "no place"
    return ", ".join(f"{place} ({replica.generation})" for place, replica in places.items()) or "an empty list"


def _check_replica(residency: Residency, replica: Replica) -> None:
    state = replica.state
    _check(state is not State.ABSENT, replica, "absent but in the books")
    _check(not replica.leases or state in LEASABLE, replica, "leased in a state that allows none")
    _check(not replica.borrowers or state in LEASABLE, replica, "read from while not sealed")
    _check(state is not State.DRAINING or replica.held, replica, "draining without a holder")
    _check(bool(replica.waiters) or state is not State.QUEUED, replica, "queued without a waiter")
    _check(not replica.waiters or state is not State.SEALED, replica, "sealed with a waiter")
    _check(replica.source is None or state is State.FILLING, replica, "a source outside a fill")
    if replica.source is not None:
        source = residency.replicas.get((replica.key, replica.source))
        borrowed = source is not None and (replica.place, replica.generation) in source.borrowers
        _check(borrowed, replica, "fills from a source it has not borrowed")
    for number in replica.leases:
        lease = residency.leases.by_number.get(number)
        same = lease is not None and (lease.key, lease.place, lease.generation) == (
            replica.key,
            replica.place,
            replica.generation,
        )
        _check(same, replica, f"lease {number} is not in the books or of another replica")
    _check(replica.readers == _readers(residency, replica), replica, "its readers are others than it says")


def _validate_capacity(residency: Residency) -> None:
    for place, capacity in residency.room.capacities.items():
        here = [r for r in residency.replicas.values() if r.place == place and r.state in CHARGED]
        total = sum(residency.room.takes(place, replica.nbytes) for replica in here)
        if total != residency.room.charged[place]:
            raise InvariantError(f"{place}: {residency.room.charged[place]} bytes charged, the replicas have {total}")
        if total > capacity:
            raise InvariantError(f"{place}: {total} bytes charged, the capacity is {capacity}")
        working = sum(replica.working_bytes * len(_readers(residency, replica)) for replica in here)
        if working != residency.room.working[place]:
            raise InvariantError(
                f"{place}: {residency.room.working[place]} bytes kept for work, the readers need {working}"
            )


def _readers(residency: Residency, replica: Replica) -> Counter[int]:
    """Who reads it, from the leases; who is going to, from those who wait while it is filled."""
    readers = Counter(residency.leases.by_number[number].session for number in replica.leases)
    if replica.state is State.FILLING:
        readers.update(waiter.reader for waiter in replica.waiters.values() if waiter.reader is not None)
    return readers


def _validate_people(residency: Residency) -> None:
    by_replica = {number for replica in residency.replicas.values() for number in replica.leases}
    by_session = {number for numbers in residency.leases.sessions().values() for number in numbers}
    if not by_replica == by_session == set(residency.leases.by_number):
        raise InvariantError(f"leases differ: {by_replica} by replica, {by_session} by session")
    for ticket, (device, host) in residency.promotions.by_ticket.items():
        _check(device.state is State.QUEUED, device, "waits for the host outside the queue")
        waited_for = residency.waiters.by_ticket.get(ticket)
        _check(waited_for is not None and waited_for.place == host, device, "waits for a host that does not know")
    own = {ticket for ticket in residency.waiters.by_ticket if ticket < 0}
    if own != set(residency.promotions.by_ticket):
        raise InvariantError(f"promotions differ: {own} wait, {set(residency.promotions.by_ticket)} are in the books")
    waiting = {ticket: replica for replica in residency.replicas.values() for ticket in replica.waiters}
    by_ticket = residency.waiters.by_ticket
    if waiting != by_ticket:
        raise InvariantError(f"waiters differ: {set(waiting)} by replica, {set(by_ticket)} by ticket")


def _check(holds: bool, replica: Replica, rule: str) -> None:
    if not holds:
        told = "\n  ".join(replica.story)
        raise InvariantError(
            f"{replica.key[:16]} at {replica.place} ({replica.state.value}): {rule}. Its story:\n  {told}"
        )
