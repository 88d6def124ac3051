"""Policies: which replica goes first under each, and the contract that each keeps."""

from __future__ import annotations

import pytest
from policies import Alphabetical, order_of

from trims.core.policy.eviction import (
    FirstInFirstOut,
    GreedyDualSizeFrequency,
    LeastFrequentlyUsed,
    LeastRecentlyUsed,
    Policy,
)
from trims.daemon.main import load_policy
from trims.testing.policies import PolicyContract, usage

CANDIDATES = [
    usage("old", filled_at_s=1, last_used_s=9, uses=5),
    usage("rare", filled_at_s=2, last_used_s=8, uses=1),
    usage("idle", filled_at_s=3, last_used_s=4, uses=7),
    usage("idle and rare", filled_at_s=4, last_used_s=5, uses=1),
]


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (LeastRecentlyUsed(), ["idle", "idle and rare", "rare", "old"]),
        (LeastFrequentlyUsed(), ["idle and rare", "rare", "old", "idle"]),
        (FirstInFirstOut(), ["old", "rare", "idle", "idle and rare"]),
        (GreedyDualSizeFrequency(), ["idle and rare", "rare", "old", "idle"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_each_policy_has_its_order(policy: Policy, order: list[str]) -> None:
    assert order_of(policy, CANDIDATES) == order
    assert order_of(policy, CANDIDATES[::-1]) == order, "the order of becoming idle does not matter"
    assert order_of(policy, []) == []


@pytest.mark.parametrize("name", ["lru", "lfu", "fifo", "gdsf"])
def test_ties_are_broken_by_the_key_so_that_two_runs_agree(name: str) -> None:
    twins = [usage(key) for key in "cab"]
    assert order_of(load_policy(name), twins) == ["a", "b", "c"]


def test_gdsf_is_the_papers_formula_worked_by_hand() -> None:
    """Priority = L + F x C / S. Evicting sets L to the victim's priority, so that what is used later starts higher."""
    policy = GreedyDualSizeFrequency()
    small = usage("small", nbytes=10, cost_s=1.0, uses=1)  # 0 + 1 x 1 / 10 = 0.1
    large = usage("large", nbytes=1000, cost_s=10.0, uses=5)  # 0 + 5 x 10 / 1000 = 0.05
    dear = usage("dear", nbytes=100, cost_s=30.0, uses=1)  # 0 + 1 x 30 / 100 = 0.3
    for each in (small, large, dear):
        policy.used(each)
    assert order_of(policy, [small, large, dear]) == ["large", "small", "dear"]
    policy.gone("large", evicted=True)  # L = 0.05
    late = usage("late", nbytes=100, cost_s=6.0, uses=1)  # 0.05 + 0.06 = 0.11: above small, though 0.06 < 0.1
    policy.used(late)
    assert order_of(policy, [late, small, dear]) == ["small", "late", "dear"]
    policy.gone("small", evicted=True)  # L = 0.1
    again = usage("again", nbytes=1000, cost_s=1.0, uses=1)  # 0.1 + 0.001 = 0.101: below late's 0.11, just
    policy.used(again)
    assert order_of(policy, [late, again, dear]) == ["again", "late", "dear"]


def test_gdsf_does_not_age_by_what_leaves_of_itself() -> None:
    policy = GreedyDualSizeFrequency()
    dear, cheap = usage("dear", cost_s=1000.0), usage("cheap", cost_s=1.0)
    policy.used(dear)
    policy.used(cheap)
    policy.gone("dear", evicted=False)
    fresh = usage("fresh", cost_s=2.0)
    policy.used(fresh)
    assert order_of(policy, [fresh, cheap]) == ["cheap", "fresh"]
    policy.gone("never seen", evicted=True)
    assert order_of(policy, [fresh, cheap]) == ["cheap", "fresh"]


def test_gdsf_renews_the_priority_with_every_use() -> None:
    policy = GreedyDualSizeFrequency()
    policy.used(usage("a", uses=1))
    policy.used(usage("b", uses=2))
    policy.used(usage("a", uses=3))
    assert order_of(policy, [usage("a", uses=3), usage("b", uses=2)]) == ["b", "a"]


class TestAlphabetical(PolicyContract):
    def make(self) -> Policy:
        return Alphabetical()


class TestLeastRecentlyUsed(PolicyContract):
    def make(self) -> Policy:
        return LeastRecentlyUsed()


class TestLeastFrequentlyUsed(PolicyContract):
    def make(self) -> Policy:
        return LeastFrequentlyUsed()


class TestFirstInFirstOut(PolicyContract):
    def make(self) -> Policy:
        return FirstInFirstOut()


class TestGreedyDualSizeFrequency(PolicyContract):
    def make(self) -> Policy:
        return GreedyDualSizeFrequency()
