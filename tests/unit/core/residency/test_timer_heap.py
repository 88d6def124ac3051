"""Due times: earliest first, dead entries never, and no more memory than what is alive."""

from __future__ import annotations

from trims.core.residency.timer_heap import TimerHeap


def test_the_earliest_live_entry_is_due_next() -> None:
    alive = {"a", "b", "c"}
    due: TimerHeap[str] = TimerHeap(lambda _, item: item in alive)
    assert due.next_s() is None
    for at_s, item in ((7.0, "a"), (5.0, "b"), (6.0, "c")):
        due.add(at_s, item)
    assert due.next_s() == 5.0
    alive.discard("b")
    assert due.next_s() == 6.0
    assert due.pop_due(5.5) is None
    assert [due.pop_due(9.0) for _ in range(3)] == ["c", "a", None]


def test_entries_of_the_same_time_come_in_the_order_they_were_added() -> None:
    due: TimerHeap[str] = TimerHeap(lambda *_: True)
    for item in "cab":
        due.add(1.0, item)
    assert [due.pop_due(1.0) for _ in range(3)] == ["c", "a", "b"]


def test_dead_entries_take_no_memory_for_ever() -> None:
    due: TimerHeap[int] = TimerHeap(lambda _, item: item >= 99_990)
    for number in range(100_000):
        due.add(1e6 + number, number)
    assert len(due._heap) < 1000
    assert due.next_s() == 1e6 + 99_990
