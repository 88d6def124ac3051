"""The contract every eviction policy keeps, as an inheritable suite.

A plug-in's tests subclass `PolicyContract` and say how to make the policy. What order the policy chooses is its own
affair; that it names each idle replica once, never a busy one, and the same in every run, is not.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from trims.core.policy.eviction import Policy, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable


def usage(key: str, **known: float) -> Usage:
    """Return the record of a replica; what is not said is the same for all."""
    facts: dict[str, float] = {"nbytes": 100, "cost_s": 1.0, "uses": 1, "filled_at_s": 0.0, "last_used_s": 0.0, **known}
    return Usage(key=key, **facts)  # type: ignore[arg-type]


def drain(policy: Policy) -> list[str]:
    """Take out all idle replicas, first to go first, as evictions would."""
    order = []
    while (key := policy.first()) is not None:
        order.append(key)
        policy.busy(key)
        policy.gone(key, evicted=True)
    return order


class PolicyContract:
    """Subclass it as `TestMyPolicy` and provide `make`."""

    def make(self) -> Policy:
        """Return a policy that has seen nothing."""
        raise NotImplementedError

    def idle(self, policy: Policy, usages: Iterable[Usage]) -> None:
        """Have replicas filled, used and let go."""
        for each in usages:
            policy.used(each)
            policy.idle(each)

    def test_it_is_a_policy_with_a_name(self) -> None:
        assert isinstance(self.make(), Policy)
        assert self.make().name

    def test_nothing_is_first_where_nothing_is_idle(self) -> None:
        assert self.make().first() is None

    def test_asking_for_the_first_changes_nothing(self) -> None:
        policy = self.make()
        self.idle(policy, [usage("a"), usage("b")])
        assert policy.first() == policy.first()

    def test_each_idle_replica_goes_once(self) -> None:
        policy = self.make()
        self.idle(policy, [usage(key, last_used_s=ord(key)) for key in "dacb"])
        assert sorted(drain(policy)) == ["a", "b", "c", "d"]

    def test_a_busy_replica_is_never_first(self) -> None:
        policy = self.make()
        self.idle(policy, [usage("a"), usage("b")])
        policy.busy("a")
        policy.busy("a")
        assert drain(policy) == ["b"]

    def test_a_replica_that_is_idle_again_may_go_again(self) -> None:
        policy = self.make()
        self.idle(policy, [usage("a")])
        policy.busy("a")
        self.idle(policy, [usage("a", uses=2, last_used_s=9.0)])
        assert drain(policy) == ["a"]

    def test_what_has_left_is_forgotten(self) -> None:
        policy = self.make()
        self.idle(policy, [usage("a"), usage("b")])
        policy.gone("a", evicted=False)
        assert drain(policy) == ["b"]

    def test_equal_replicas_go_by_key_so_that_two_runs_agree(self) -> None:
        policy = self.make()
        self.idle(policy, [usage(key) for key in "cab"])
        assert drain(policy) == ["a", "b", "c"]

    def test_it_agrees_with_a_plain_list_over_many_random_steps(self) -> None:
        policy, chance, idle = self.make(), random.Random(7), set[str]()  # noqa: S311 - the same steps each time
        for step in range(5000):
            key = f"k{chance.randrange(200)}"
            if key in idle and chance.random() < 0.5:
                idle.discard(key)
                policy.busy(key)
            else:
                idle.add(key)
                self.idle(policy, [usage(key, uses=step, last_used_s=step, filled_at_s=step)])
            first = policy.first()
            assert (first is None) == (not idle)
            assert first is None or first in idle
        assert set(drain(policy)) == idle
