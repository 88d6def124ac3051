"""A policy that is not one of ours, and the order in which a policy would have replicas go."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from trims.core.policy.eviction import Policy, Usage


def order_of(policy: Policy, idle: list[Usage]) -> list[str]:
    """The keys of idle replicas in the order in which the policy would have them go."""
    order = []
    for each in idle:
        policy.idle(each)
    while (key := policy.first()) is not None:
        order.append(key)
        policy.busy(key)
    return order


class Alphabetical:
    """A policy written without ours: a plain list that is sorted whenever the first is asked for."""

    name: ClassVar[str] = "alphabetical"

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def used(self, usage: Usage) -> None: ...

    def idle(self, usage: Usage) -> None:
        self.keys.add(usage.key)

    def busy(self, key: str) -> None:
        self.keys.discard(key)

    def first(self) -> str | None:
        return min(self.keys, default=None)

    def gone(self, key: str, *, evicted: bool) -> None:
        self.busy(key)
