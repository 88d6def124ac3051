"""FairQueue: tenants one after the other, the work of each in order."""

from __future__ import annotations

import pytest

from trims.store.fair_queue import FairQueue


def test_a_tenant_with_much_work_delays_another_by_one_piece() -> None:
    turns: FairQueue[str] = FairQueue()
    for number in range(100):
        turns.add(f"greedy {number}", "greedy")
    turns.add("modest", "modest")
    turns.add("operator")
    assert [turns.pop() for _ in range(5)] == ["greedy 0", "modest", "operator", "greedy 1", "greedy 2"]
    assert len(turns) == 97


def test_a_tenant_that_comes_back_has_no_turn_saved_up() -> None:
    turns: FairQueue[int] = FairQueue()
    for number, tenant in enumerate("aab"):
        turns.add(number, tenant)
    assert turns.pop() == 0
    turns.add(3, "b")
    turns.add(4, "a")
    assert [turns.pop() for _ in range(4)] == [2, 1, 3, 4]


def test_nothing_is_left_after_it_was_cleared() -> None:
    turns: FairQueue[int] = FairQueue()
    turns.add(1, "a")
    turns.clear()
    assert len(turns) == 0
    with pytest.raises(LookupError, match="nothing waits"):
        turns.pop()
