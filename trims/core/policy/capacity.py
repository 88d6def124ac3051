"""Capacity: what each place may hold, what it holds, and which replica goes first. It counts; `Admission` decides.

Every charged replica counts in exactly one `Share` of its place, and each place keeps the sum of each share. So the
bytes that are idle, leased or on their way back are known without looking at any other replica.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims.core.policy.eviction import Usage
from trims.core.replica import Replica, Share, State
from trims.core.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trims.core.place import Place
    from trims.core.policy.eviction import Policy

#: Shares of replicas that hold no memory, or are giving it back.
_NOT_HELD = (Share.NONE, Share.LEAVING)
_OF_STATE = {State.FILLING: Share.FILLING, State.FREEING: Share.LEAVING}


def usage_of(replica: Replica) -> Usage:
    """Return the record of a replica that policies see."""
    return Usage(
        key=replica.key,
        nbytes=replica.nbytes or 1,
        cost_s=replica.cost_s,
        uses=replica.uses,
        filled_at_s=replica.filled_at_s,
        last_used_s=replica.last_used_s,
    )


@dataclass(slots=True, eq=False)
class PlaceBooks:
    """The figures of one place.

    Attributes:
        capacity_bytes: Bytes it may hold: as stated, or fewer for a while after the machine had less room there.
        stated_bytes: Bytes it may hold by its tier's capacity.
        full_until_s: Until when `capacity_bytes` is what the machine had room for; None if it is what is stated.
        policy: Orders its idle replicas.
        reserve_bytes: Left free beside the capacity, for the work of sessions that read there.
        unit_bytes: Unit in which it gives memory; all charges are multiples.
        charged_bytes: Bytes it holds now, memory that is on its way back included.
        workspace_bytes: What sessions that read there need beside what they read. What exceeds the reserve is not given
            to images.
        claimed_bytes: Bytes on their way back that are kept for queued replicas.
        shares: Bytes by what they count as.
        promised: Idle replicas that a waiting device is going to be filled from; they are evicted last.
        returned_bytes: Bytes that have come back in all; it only grows.
    """

    capacity_bytes: int
    policy: Policy
    reserve_bytes: int
    unit_bytes: int
    charged_bytes: int
    workspace_bytes: int
    claimed_bytes: int
    shares: dict[Share, int]
    promised: OrderedDict[str, None]
    stated_bytes: int = 0
    full_until_s: float | None = None
    returned_bytes: int = 0

    def __post_init__(self) -> None:
        self.stated_bytes = self.stated_bytes or self.capacity_bytes

    @property
    def free_bytes(self) -> int:
        """Return the bytes images may still take; below 0 if the sessions that read need more than is left."""
        free = self.capacity_bytes - self.charged_bytes
        return free - self.workspace_over() if self.workspace_bytes else free

    @property
    def coming_bytes(self) -> int:
        """Return the bytes that are free or on their way back and kept for no replica.

        Only a running copy delays them.
        """
        return self.free_bytes + self.shares[Share.LEAVING] - self.claimed_bytes

    def found_full(self, room_bytes: int, until_s: float) -> None:
        """Believe until `until_s` that the machine has room for `room_bytes` beside what is charged, and for no more.

        Never less than what is charged: what lies there has its room.
        """
        self.capacity_bytes = min(self.stated_bytes, self.charged_bytes + max(0, room_bytes))
        self.full_until_s = until_s

    def forget_full(self, at_s: float) -> None:
        """Believe the stated capacity again if it is time: other programs may have given room back meanwhile."""
        if self.full_until_s is not None and self.full_until_s <= at_s:
            self.capacity_bytes, self.full_until_s = self.stated_bytes, None

    def takes(self, nbytes: int) -> int:
        """Return the bytes that an image of `nbytes` is charged here: rounded up to whole units."""
        return nbytes if self.unit_bytes == 1 else align_up(nbytes, self.unit_bytes)

    def workspace_over(self, more_bytes: int = 0) -> int:
        """Return the bytes by which the readers' work exceeds the reserve, if it grew by `more_bytes`."""
        return max(0, self.workspace_bytes + more_bytes - self.reserve_bytes)

    def need_of(self, replica: Replica) -> int:
        """Return the bytes that must be free for a replica and the work of one session that reads it."""
        need = self.takes(replica.nbytes)
        if not replica.workspace_bytes:
            return need
        return need + self.workspace_over(replica.workspace_bytes) - self.workspace_over()

    def least_need_of(self, replica: Replica) -> int:
        """Return the bytes that must be free for a replica and its reader's work, if no other session read there."""
        return self.takes(replica.nbytes) + max(0, replica.workspace_bytes - self.reserve_bytes)

    def evictable_bytes(self, *, spare_promised: bool) -> int:
        """Return the bytes of all replicas that may be evicted."""
        return self.shares[Share.IDLE] + (0 if spare_promised else self.shares[Share.PROMISED])

    def next_victim(self, *, spare_promised: bool) -> str | None:
        """Key of the replica to evict first: in the policy's order, those promised to a device last."""
        first = self.policy.first()
        if first is None and not spare_promised:
            return next(iter(self.promised), None)
        return first


class Capacity:
    """The figures of all places, pins and policies.

    Args:
        capacities: Bytes each place may hold; a place that is not listed does not exist.
        policies: One for each place.
        reserves: Bytes left free at a place beside its capacity, for the work of sessions that read there.
        units: Bytes in which a place gives memory; 1 where nothing is said.
        max_images: Replicas that all places together should hold: each takes a file descriptor of the daemon.

    Attributes:
        at: The figures of each place.
        images: Replicas that hold memory and are not leaving; each counts for as many as it takes descriptors.
        pins: Images that are never evicted from a place.
    """

    def __init__(
        self,
        capacities: Mapping[Place, int],
        policies: Mapping[Place, Policy],
        reserves: Mapping[Place, int] | None = None,
        units: Mapping[Place, int] | None = None,
        max_images: int = sys.maxsize,
    ) -> None:
        self.max_images = max_images
        self.images = 0
        self.at: dict[Place, PlaceBooks] = {
            place: PlaceBooks(
                capacity_bytes=nbytes,
                policy=policies[place],
                reserve_bytes=(reserves or {}).get(place, 0),
                unit_bytes=(units or {}).get(place, 1),
                charged_bytes=0,
                workspace_bytes=0,
                claimed_bytes=0,
                shares=dict.fromkeys(Share, 0),
                promised=OrderedDict(),
            )
            for place, nbytes in capacities.items()
        }
        self.pins: set[tuple[str, Place]] = set()

    def __contains__(self, place: object) -> bool:
        return place in self.at

    @property
    def too_many_images(self) -> bool:
        """Return whether there are more images than descriptors for them."""
        return self.images > self.max_images

    @property
    def charged(self) -> dict[Place, int]:
        """Return the bytes each place holds now."""
        return {place: books.charged_bytes for place, books in self.at.items()}

    @property
    def capacities(self) -> dict[Place, int]:
        """Return the bytes each place may hold."""
        return {place: books.capacity_bytes for place, books in self.at.items()}

    def pin(self, key: str, place: Place, *, pinned: bool) -> None:
        """Pin or unpin an image at a place. Idempotent."""
        (self.pins.add if pinned else self.pins.discard)((key, place))

    def recount(self, replica: Replica, *, promised: bool) -> bool:
        """Count the replica's bytes as what they are now; True if that changed. Call it after every change.

        Args:
            promised: A device waits for room and is going to be filled from it.
        """
        books = self.at[replica.place]
        share = self.share_of(replica, promised=promised)
        nbytes = 0 if share is Share.NONE else books.takes(replica.nbytes)
        changed = share is not replica.share or nbytes != replica.charged_bytes
        if changed:
            books.shares[replica.share] -= replica.charged_bytes
            books.shares[share] += nbytes
            books.charged_bytes += nbytes - replica.charged_bytes
            held = (share not in _NOT_HELD) - (replica.share not in _NOT_HELD)
            self.images += held * replica.descriptors
            if replica.share is Share.LEAVING and share is Share.NONE:
                books.returned_bytes += replica.charged_bytes
            if replica.share is Share.IDLE:
                books.policy.busy(replica.key)
            elif replica.share is Share.PROMISED:
                del books.promised[replica.key]
            if share is Share.PROMISED:
                books.promised[replica.key] = None
            replica.share, replica.charged_bytes = share, nbytes
        if share is Share.IDLE:
            books.policy.idle(usage_of(replica))
        return changed

    def count_images(self, replicas: Iterable[Replica]) -> int:
        """Return how many images these replicas count as, against `max_images`."""
        return sum(replica.descriptors for replica in replicas if replica.share not in _NOT_HELD)

    def share_of(self, replica: Replica, *, promised: bool) -> Share:
        """Return the share that the replica's bytes count in, in its present state."""
        state = replica.state
        if state is State.SEALED:
            if replica.leases or replica.borrowers or replica.waiters:  # waiters: of a fill that has just ended
                return Share.READ
            if (replica.key, replica.place) in self.pins:
                return Share.PINNED
            return Share.PROMISED if promised else Share.IDLE
        if state is State.DRAINING:
            return Share.READ if replica.leases else Share.LEAVING
        return _OF_STATE.get(state, Share.NONE)

    def used(self, replica: Replica) -> None:
        """Notify the policy of a fill or a grant."""
        self.at[replica.place].policy.used(usage_of(replica))

    def leaves(self, replica: Replica, *, evicted: bool) -> None:
        """Notify the policy that a replica leaves; `evicted` if it was chosen to make room."""
        self.at[replica.place].policy.gone(replica.key, evicted=evicted)

    def claim(self, replica: Replica, nbytes: int) -> None:
        """Keep bytes that are on their way back for a queued replica; 0 takes the claim back."""
        self.at[replica.place].claimed_bytes += nbytes - replica.claimed_bytes
        replica.claimed_bytes = nbytes
