"""Timing several ways of doing one thing in turns: A B A B, so that what slows the machine slows all of them."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def take_turns(
    ways: Mapping[str, Callable[[], Any]],
    count: int,
    *,
    warm_up: int = 1,
    keep: Callable[[str, Any], None] | None = None,
) -> dict[str, list[int]]:
    """Time each way `count` times.

    Args:
        ways: Name -> what to do. What it returns is dropped, outside of the time, before the next one begins.
        count: Timed rounds.
        warm_up: Rounds before them, for late imports and caches of the framework.
        keep: Called after each with name and result, outside of the time.

    Returns:
        Nanoseconds by name, in order.
    """
    found: dict[str, list[int]] = {name: [] for name in ways}
    for number in range(warm_up + count):
        for name, do in ways.items():
            gc.collect()
            began = time.perf_counter_ns()
            result = do()
            ended = time.perf_counter_ns()
            if keep is not None:
                keep(name, result)
            del result
            if number >= warm_up:
                found[name].append(ended - began)
    gc.collect()
    return found


def take_turns_in_bursts(
    ways: Mapping[str, Callable[[], Any]],
    count: int,
    *,
    burst: int = 50,
    warm_up: int = 5,
    keep: Callable[[str, Any], None] | None = None,
) -> dict[str, list[int]]:
    """Time each way at least `count` times, one time right after the other, as a load generator does.

    The ways take turns by bursts. Alone between other ways, each time would begin with the caches of another program.

    Args:
        ways: As in `take_turns`.
        count: Of each way, rounded up to whole bursts.
        burst: Timed calls in a row.
        warm_up: Calls before those of each burst.
        keep: As in `take_turns`; called after the burst, with its last result.

    Returns:
        Nanoseconds by name, in order.
    """
    found: dict[str, list[int]] = {name: [] for name in ways}
    for _ in range(-(-count // burst)):
        for name, do in ways.items():
            gc.collect()
            for number in range(warm_up + burst):
                began = time.perf_counter_ns()
                result = do()
                if number >= warm_up:
                    found[name].append(time.perf_counter_ns() - began)
            if keep is not None:
                keep(name, result)
    return found
