"""The line at one place: queued replicas of known size that wait for leases to end, oldest first.

A replica gets room, gets a claim to room that is on its way back, or stands in this line. Replicas whose size is not
known yet stand in no line: they hold up none.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trims.core.replica import Replica

_Heap = list[tuple[int, int, "Replica"]]
_SLACK = 64


class AdmissionQueue:
    """Queued replicas by age and by size; every step costs O(log n)."""

    def __init__(self) -> None:
        self.members: dict[int, Replica] = {}
        self._oldest: _Heap = []
        self._smallest: _Heap = []

    def __contains__(self, replica: Replica) -> bool:
        return replica.generation in self.members

    def __len__(self) -> int:
        return len(self.members)

    def add(self, replica: Replica) -> None:
        """Put the replica in line, at the position of its generation. Idempotent."""
        if replica in self:
            return
        self.members[replica.generation] = replica
        heapq.heappush(self._oldest, (replica.generation, 0, replica))
        heapq.heappush(self._smallest, (replica.nbytes, replica.generation, replica))
        if len(self._smallest) > 2 * len(self.members) + _SLACK:
            self._compact()

    def remove(self, replica: Replica) -> bool:
        """Take the replica out of the line. Return False if it did not stand there."""
        return self.members.pop(replica.generation, None) is not None

    def first(self) -> Replica | None:
        """Return the oldest replica."""
        while self._oldest:
            generation, _, replica = self._oldest[0]
            if generation in self.members:
                return replica
            heapq.heappop(self._oldest)
        return None

    def smallest_after(self, first: Replica) -> Replica | None:
        """Return the smallest replica that is not the first, the older of equals; None if there is no other."""
        held = []
        found = None
        while self._smallest:
            entry = self._smallest[0]
            if entry[1] in self.members and entry[2] is not first:
                found = entry[2]
                break
            heapq.heappop(self._smallest)
            if entry[2] is first and entry[1] in self.members:
                held = [entry]
        for entry in held:
            heapq.heappush(self._smallest, entry)
        return found

    def _compact(self) -> None:
        self._oldest = [(replica.generation, 0, replica) for replica in self.members.values()]
        self._smallest = [(replica.nbytes, replica.generation, replica) for replica in self.members.values()]
        heapq.heapify(self._oldest)
        heapq.heapify(self._smallest)
