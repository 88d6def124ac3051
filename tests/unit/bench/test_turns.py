"""Ways take turns one by one, or by bursts, and only what counts is timed."""

from __future__ import annotations

from trims_bench.turns import take_turns, take_turns_in_bursts


def test_ways_take_turns_one_by_one() -> None:
    called: list[str] = []
    found = take_turns({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, 3, warm_up=1)
    assert called == ["a", "b"] * 4
    assert {name: len(times) for name, times in found.items()} == {"a": 3, "b": 3}


def test_in_bursts_a_way_is_called_often_in_a_row_before_the_next_one() -> None:
    called: list[str] = []
    ways = {"a": lambda: called.append("a"), "b": lambda: called.append("b")}
    found = take_turns_in_bursts(ways, 5, burst=3, warm_up=1)
    assert "".join(called) == ("aaaa" + "bbbb") * 2
    assert {name: len(times) for name, times in found.items()} == {"a": 6, "b": 6}


def test_the_last_result_of_each_burst_is_kept() -> None:
    kept: list[tuple[str, int]] = []
    numbers = iter(range(100))
    take_turns_in_bursts({"a": lambda: next(numbers)}, 4, burst=2, warm_up=1, keep=lambda *each: kept.append(each))
    assert kept == [("a", 2), ("a", 5)]
