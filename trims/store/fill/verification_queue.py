"""Queue of replicas that an earlier daemon left and that are still to be read and hashed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.errors import TrimsError
    from trims.core.replica import ReplicaId
    from trims.core.residency.events import Event

    #: Work, and the event that its error becomes.
    Job = tuple[Callable[[], Event], Callable[[TrimsError], Event]]


class VerificationQueue:
    """Replicas that are to be verified. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nbytes: dict[ReplicaId, int] = {}
        #: Jobs that have not begun, of replicas that are not lent before.
        self._jobs: OrderedDict[ReplicaId, Job] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Return the bytes that are still to be read."""
        with self._lock:
            return sum(self._nbytes.values())

    def add(self, replica: ReplicaId, nbytes: int, job: Job | None = None) -> None:
        """Add a replica.

        Args:
            job: Work to be taken by `pop` or `take`; None for a replica that is lent meanwhile.
        """
        with self._lock:
            self._nbytes[replica] = nbytes
            if job is not None:
                self._jobs[replica] = job

    def pop(self) -> tuple[ReplicaId, Job] | None:
        """Take the first job; None if there is none."""
        with self._lock:
            return self._jobs.popitem(last=False) if self._jobs else None

    def take(self, replica: ReplicaId) -> Job | None:
        """Take the job of a replica; None if it has begun, or there is none."""
        with self._lock:
            return self._jobs.pop(replica, None)

    def move_up(self, replica: ReplicaId) -> bool:
        """Have a replica verified before all others. Return False if it is not to be verified."""
        with self._lock:
            if replica in self._jobs:
                self._jobs.move_to_end(replica, last=False)
            return replica in self._nbytes

    def end(self, replica: ReplicaId) -> None:
        """Take a replica out, whose verification is over. Idempotent."""
        with self._lock:
            self._nbytes.pop(replica, None)
