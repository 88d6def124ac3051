"""The books without a store: feed events, look at instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.core.lease import Waiter
from trims.core.place import CPU, DISK, GPU, Place, TierKind
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.replica import State
from trims.core.residency.events import (
    Adopted,
    Changed,
    Event,
    Filled,
    Freed,
    Grant,
    Instruction,
    KeepAlive,
    Measured,
    Refuse,
    Requested,
)
from trims.core.residency.residency import Residency

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims.core.policy.quotas import Quota

#: The second device.
OTHER = Place(TierKind.GPU, 1)


class Bench:
    """A residency with a clock of its own, validated after every event."""

    def __init__(
        self,
        cpu_bytes: int = 100,
        disk_bytes: int = 1000,
        gpu_bytes: int = 100,
        quotas: Mapping[str, Quota] | None = None,
    ) -> None:
        places = {CPU: cpu_bytes, DISK: disk_bytes, GPU: gpu_bytes}
        self.residency = Residency(places, {place: LeastRecentlyUsed() for place in places}, quotas=quotas)
        self.now = 0.0
        self.ticket = 0

    def feed(self, kind: type[Event], **fields: object) -> list[Instruction]:
        self.now += 1.0
        out = self.residency.handle(kind(at_s=self.now, **fields))
        self.residency.validate()
        return [each for each in out if not isinstance(each, Changed)]

    def ask(
        self,
        key: str,
        *,
        session: int | None = 1,
        place: Place = CPU,
        deadline_in_s: float | None = None,
        lease: bool = True,
        keep_alive_s: float | None = None,
        tenant: str | None = None,
        **more: Any,
    ) -> list[Instruction]:
        self.ticket += 1
        deadline = None if deadline_in_s is None else self.now + 1.0 + deadline_in_s
        waiter = Waiter(self.ticket, session, lease, deadline, tenant=tenant)
        return self.feed(Requested, key=key, place=place, waiter=waiter, keep=KeepAlive(keep_alive_s), **more)

    def generation(self, key: str, place: Place = CPU) -> int:
        replica = self.residency.find(key, place)
        assert replica is not None
        return replica.generation

    def measured(self, key: str, nbytes: int, place: Place = CPU) -> list[Instruction]:
        return self.feed(Measured, nbytes=nbytes, **self.measurement(key, place))

    def measurement(self, key: str, place: Place = CPU) -> dict[str, object]:
        replica = self.residency.find(key, place)
        assert replica is not None
        facts = {"key": key, "place": place, "generation": replica.generation}
        return {**facts, "measurement": replica.measuring}

    def filled(self, key: str, place: Place = CPU, cost_s: float = 1.0) -> list[Instruction]:
        return self.feed(Filled, key=key, place=place, generation=self.generation(key, place), cost_s=cost_s)

    def freed(self, key: str, place: Place = CPU) -> list[Instruction]:
        return self.feed(Freed, key=key, place=place, generation=self.generation(key, place))

    def resident(self, key: str, nbytes: int, *places: Place) -> None:
        """Have an idle, sealed replica at each place; at cpu if none is named."""
        for place in places or (CPU,):
            self.feed(Adopted, key=key, place=place, nbytes=nbytes)

    def opened(self, key: str, session: int = 1) -> int:
        """Open a resident model; returns the lease's number."""
        (grant,) = self.ask(key, session=session)
        assert isinstance(grant, Grant)
        return grant.lease.number

    def state(self, key: str, place: Place = CPU) -> State:
        replica = self.residency.find(key, place)
        return replica.state if replica else State.ABSENT


class Devices(Bench):
    """Two devices with a reserve of 10 bytes each."""

    def __init__(
        self, *, peers: bool = False, cpu_bytes: int = 1000, quotas: Mapping[str, Quota] | None = None
    ) -> None:
        super().__init__()
        places = {CPU: cpu_bytes, DISK: 1000, GPU: 100, OTHER: 100}
        pairs = [(GPU, OTHER), (OTHER, GPU)] if peers else []
        policies = {place: LeastRecentlyUsed() for place in places}
        self.residency = Residency(places, policies, reserves={GPU: 10, OTHER: 10}, peers=pairs, quotas=quotas)

    def want(self, key: str, workspace_bytes: int, *, session: int = 1, place: Place = GPU) -> list[Instruction]:
        """Open a model whose readers need that much beside it."""
        self.ticket += 1
        waiter = Waiter(self.ticket, session, wants_lease=True, deadline_at_s=None)
        return self.feed(Requested, key=key, place=place, waiter=waiter, workspace_bytes=workspace_bytes)


def kinds(instructions: list[Instruction]) -> list[type[Instruction]]:
    return [type(each) for each in instructions]


def error_of(instructions: list[Instruction]) -> Exception:
    (refusal,) = [each for each in instructions if isinstance(each, Refuse)]
    return refusal.error


def only(kind: type[Event | Instruction], out: list[Instruction]) -> list[Instruction]:
    return [each for each in out if isinstance(each, kind)]
