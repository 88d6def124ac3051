"""Reclaimer counts in a thread, ends one thing at a time, and looks again when something has changed."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest
from nursing import until
from trims_predictors.warm import reclaimer
from trims_predictors.warm.memory_usage import Footprint
from trims_predictors.warm.reclaim_policy import Limits, Step, Usage, Way
from trims_predictors.warm.reclaimer import Reclaimer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

SIZES = {1: 40, 2: 50, 3: 60}


class Inventory:
    """Stands in for that of a warm pool. Templates named by their process; one that is ended is gone at once."""

    def __init__(self) -> None:
        self.living = set(SIZES)
        self.steps: list[Step] = []
        self.used_s = float("inf")

    def pids(self) -> list[int]:
        return sorted(self.living)

    def usages(self, counted: Mapping[int, Footprint]) -> tuple[list[Usage], int]:
        found = [Usage(pid, counted[pid].share_bytes if pid in counted else 0, used_s=pid + self.used_s)
                 for pid in sorted(self.living)]  # fmt: skip
        return found, 0

    async def calm(self) -> None:
        pass

    async def carry_out(self, step: Step) -> None:
        self.steps.append(step)
        self.living.discard(step.environment)  # type: ignore[arg-type]


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads in which processes were counted; the sizes are those of `SIZES`."""
    threads: list[threading.Thread] = []

    def count(pid: int) -> Footprint:
        threads.append(threading.current_thread())
        return Footprint(SIZES[pid], 0)

    monkeypatch.setattr(reclaimer, "footprint", count)
    monkeypatch.setattr(reclaimer, "_PAUSE_S", 0.0)
    return threads


def look_after(inventory: Inventory, limits: Limits, work: Callable[[Reclaimer], Awaitable[None]]) -> None:
    async def run() -> None:
        kept = Reclaimer(inventory, limits, inventory.calm, inventory.carry_out)  # type: ignore[arg-type]
        task = asyncio.ensure_future(kept.run())
        try:
            await asyncio.wait_for(work(kept), 30)
        finally:
            task.cancel()
            await asyncio.wait((task,))

    asyncio.run(run())


def test_memory_over_the_bound_is_ended_one_by_one_and_counted_again(counting: list[threading.Thread]) -> None:
    inventory = Inventory()

    async def work(kept: Reclaimer) -> None:
        kept.wake()
        await until(lambda: kept.total_bytes == 60)
        assert [(step.way, step.environment) for step in inventory.steps] == [(Way.END, 1), (Way.END, 2)]
        assert kept.counted == {3: Footprint(60, 0)}

    look_after(inventory, Limits(None, 60), work)
    assert len(counting) == 3 + 2 + 1
    assert threading.main_thread() not in counting


def test_nothing_is_counted_while_nothing_changes(counting: list[threading.Thread]) -> None:
    async def work(kept: Reclaimer) -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        assert not counting
        kept.wake()
        await until(lambda: kept.total_bytes == 150)

    look_after(Inventory(), Limits(), work)
    assert len(counting) == 3


def test_a_template_whose_time_is_over_ends_without_a_wake(counting: list[threading.Thread]) -> None:
    inventory = Inventory()
    inventory.used_s = 0.0

    async def work(kept: Reclaimer) -> None:
        await until(lambda: not inventory.living)

    look_after(inventory, Limits(0.0), work)
    assert len(inventory.steps) == 3


@pytest.mark.parametrize("most_bytes", [None, 10_000])
def test_it_ends_though_something_changes_in_the_moment_of_its_end(
    counting: list[threading.Thread], most_bytes: int | None
) -> None:
    async def run() -> None:
        inventory = Inventory()
        inventory.used_s = time.monotonic()
        limits = Limits(1000.0, most_bytes)
        kept = Reclaimer(inventory, limits, inventory.calm, inventory.carry_out)  # type: ignore[arg-type]
        task = asyncio.ensure_future(kept.run())
        await asyncio.sleep(0)  # it waits
        await asyncio.sleep(0)
        kept.wake()
        await asyncio.sleep(0)  # what it waits for has come, and it has not run yet
        task.cancel()
        done, _ = await asyncio.wait((task,), timeout=20)
        assert done == {task}

    asyncio.run(run())
