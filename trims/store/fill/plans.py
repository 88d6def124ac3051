"""Planned conversions: artifacts whose size was measured and that wait for room.

A plan holds no worker. It may hold a child process with a framework in it, so only a few wait at once: the plan that
waited longest is dropped, and made again when its replica gets room.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims.core.errors import ArtifactChangedError, InternalError, LostPeerError
from trims.core.place import FILE
from trims.formats.in_place import InPlace
from trims.store.catalog import identities_of
from trims.store.resolve.artifacts import builder_is_as_before

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.replica import ReplicaId
    from trims.formats.conversion.conversion import Conversion, CopyPlanBy
    from trims.image.in_place import InPlacePlan
    from trims.store.resolve.resolved import Resolved

NOT_WANTED = "no request waits for the model any more, or it came by another way"
SHUTTING_DOWN = "the daemon is shutting down"


@dataclass(slots=True, eq=False)
class Plan:
    """One artifact on its way, for one measurement.

    Attributes:
        conversion: Planned conversion; None before the artifact is measured, and after the conversion was dropped.
        stopped: Why nothing more is to be done about it; None while it is wanted.
        gives_way: No request waits for it: its converter process gives way to other programs.
    """

    resolved: Resolved
    conversion: Conversion | None = None
    gives_way: bool = False
    stopped: str | None = None


class Plans:
    """All plans of a daemon. Safe to call from several threads.

    Args:
        convert: Begins a conversion; nothing is read or started before its `plan`.
        waiting: How many may wait for room at once.
    """

    def __init__(self, convert: Callable[[Resolved], Conversion], waiting: int) -> None:
        self._convert = convert
        self._most = waiting
        self._lock = threading.Lock()
        self._plans: dict[ReplicaId, Plan] = {}
        self._waiting: OrderedDict[ReplicaId, Plan] = OrderedDict()
        self._ending = False

    def begin(self, replica: ReplicaId, resolved: Resolved, *, gives_way: bool = False) -> tuple[Plan, Plan | None]:
        """Begin a plan for a replica to be measured. Return it, and an older plan that a worker should drop.

        It may have been measured before: its image came to lie elsewhere, so the plan was not used, and left again.
        """
        with self._lock:
            before = self._plans.get(replica)
            self._waiting.pop(replica, None)
            stopped = SHUTTING_DOWN if self._ending else None
            plan = self._plans[replica] = Plan(resolved, stopped=stopped, gives_way=gives_way)
            if before is not None:
                self._stop(before, NOT_WANTED)
            return plan, before

    def raise_priority(self, replica: ReplicaId) -> None:
        """Let the replica's converter give way no more: a request waits for it. Returns at once. Idempotent."""
        with self._lock:
            plan = self._plans.get(replica)
            if plan is not None:
                plan.gives_way = False
                if plan.conversion is not None:
                    plan.conversion.give_way(yes=False)

    def measure(self, replica: ReplicaId, plan: Plan) -> int:
        """Plan the conversion. Return the image's length in bytes. Blocks. Raises as `Conversion.plan`."""
        nbytes = self._start(plan, in_place=replica.place is FILE).plan()
        _check_unchanged(plan.resolved)
        dropped: list[Plan] = []
        with self._lock:
            if self._plans.get(replica) is plan and replica.place is not FILE:  # which holds nothing that is dear
                self._waiting[replica] = plan
            while len(self._waiting) > self._most:
                dropped.append(self._waiting.popitem(last=False)[1])
            conversions = [each.conversion for each in dropped]
            for each in dropped:
                each.conversion = None
        for conversion in conversions:
            if conversion is not None:
                conversion.close()
        return nbytes

    def take_in_place(self, replica: ReplicaId) -> InPlacePlan:
        """Take the plan of a replica that is served from the artifact's own files. Blocks, raises as `measure`."""
        plan = self._plan(replica)
        try:
            if plan.conversion is None:
                self._start(plan, in_place=True).plan()
            made = plan.conversion
            _check_unchanged(plan.resolved)
            assert isinstance(made, InPlace), "a replica at `file` is measured as one"
            return made.planned()
        finally:
            self.drop(replica)

    def descriptors_of(self, replica: ReplicaId) -> int:
        """Return how many descriptors a replica that was measured will take."""
        plan = self._plans.get(replica)
        made = None if plan is None else plan.conversion
        return 1 + len(made.planned().pages) if isinstance(made, InPlace) else 1

    def mount_of(self, replica: ReplicaId) -> str:
        """Return the mount point of the artifact that a replica is made of."""
        plan = self._plans.get(replica)
        return "/" if plan is None else plan.resolved.mount

    def needs_child(self, replica: ReplicaId) -> bool:
        """Return whether writing the image takes a converter process."""
        plan = self._plans.get(replica)
        return plan is None or plan.resolved.converted

    def write(self, replica: ReplicaId, fd: int, nbytes: int, on_progress: Callable[[int], None]) -> None:
        """Write the image; a plan that was dropped is made again. Blocks. Raises as `Conversion.write`."""
        plan = self._plan(replica)
        with self._lock:
            self._waiting.pop(replica, None)
        try:
            conversion = plan.conversion
            if conversion is None:
                conversion = self._start(plan)
                found = conversion.plan()
                if found != nbytes:
                    raise _changed(plan.resolved)
            try:
                conversion.write(fd, on_progress)
            finally:
                _check_unchanged(plan.resolved)  # what a file that changed meanwhile fails with says nothing
        finally:
            self.drop(replica)

    def is_carriable(self, replica: ReplicaId) -> bool:
        """Return whether all of its image lies in files; False for a plan that was dropped."""
        plan = self._plans.get(replica)
        made = None if plan is None else plan.conversion
        return made is not None and made.is_carriable

    def carry(self, replica: ReplicaId, by: CopyPlanBy, fd: int, *, large_pages: bool) -> str | None:
        """Have another process put the image together. Return its digest. Blocks. Raises as `Conversion.carry`.

        Return None if the other process must not, or no longer, do so: the caller then calls `write`.
        """
        plan = self._plan(replica)
        with self._lock:
            self._waiting.pop(replica, None)
            conversion = plan.conversion
        if conversion is None:
            return None
        gave_way = False
        try:
            digest = conversion.carry(by, fd, large_pages=large_pages)
            gave_way = digest is None
            return digest
        finally:
            if not gave_way:
                try:
                    _check_unchanged(plan.resolved)  # as in `write`
                finally:
                    self.drop(replica)

    def stop(self, replica: ReplicaId, why: str = NOT_WANTED) -> None:
        """Stop the child of a plan that is no longer wanted. Returns at once; `drop` the plan later from a worker."""
        with self._lock:
            plan = self._plans.get(replica)
            if plan is not None:
                self._stop(plan, why)

    def drop(self, replica: ReplicaId, plan: Plan | None = None) -> None:
        """Give back what a replica's plan holds, or one plan of it. Blocks until its child is gone. Idempotent."""
        with self._lock:
            current = self._plans.get(replica)
            if plan is None or plan is current:
                self._plans.pop(replica, None)
                self._waiting.pop(replica, None)
            plan = plan or current
            conversion = plan.conversion if plan else None
            if plan is not None:
                plan.conversion, plan.stopped = None, plan.stopped or NOT_WANTED
        if conversion is not None:
            conversion.close()

    def end(self) -> None:
        """Stop all plans, and those to come: the daemon ends."""
        with self._lock:
            self._ending = True
            for plan in self._plans.values():
                self._stop(plan, SHUTTING_DOWN)

    def close(self) -> None:
        """Give back all that is left."""
        for replica in list(self._plans):
            self.drop(replica)

    def __contains__(self, replica: object) -> bool:
        return replica in self._plans

    def __len__(self) -> int:
        return len(self._plans)

    @staticmethod
    def _stop(plan: Plan, why: str) -> None:
        plan.stopped = plan.stopped or why
        if plan.conversion is not None:
            plan.conversion.cancel(why)

    def _plan(self, replica: ReplicaId) -> Plan:
        with self._lock:
            plan = self._plans.get(replica)
        if plan is None:
            raise InternalError(f"{replica.key[:16]} at {replica.place} was to be converted without a plan")
        return plan

    def _start(self, plan: Plan, *, in_place: bool = False) -> Conversion:
        conversion = InPlace(plan.resolved.artifact) if in_place else self._convert(plan.resolved)
        with self._lock:
            plan.conversion, stopped = conversion, plan.stopped
            conversion.give_way(yes=plan.gives_way)
        if stopped is not None:
            conversion.close()
            raise LostPeerError(f"{plan.resolved.name}: its conversion was stopped: {stopped}")
        return conversion


def _check_unchanged(resolved: Resolved) -> None:
    """Check that the files are still those whose digests are in the image key, and so are the bytes read from them.

    Raises ArtifactChangedError. An artifact that is gone altogether is found out by reading it.
    """
    same = not resolved.identities or identities_of(resolved.artifact.files) == resolved.identities
    if not (same and builder_is_as_before(resolved)):
        raise _changed(resolved)


def _changed(resolved: Resolved) -> ArtifactChangedError:
    files = resolved.artifact.files
    now = identities_of(files)
    changed = [file for file, *known in zip(files, now, resolved.identities, strict=False) if len(set(known)) > 1]
    return ArtifactChangedError(
        f"{resolved.name}: {(*changed, files[0])[0]} changed while it was converted; open it again once it is written"
    )
