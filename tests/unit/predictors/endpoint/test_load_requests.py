"""Orders to load models share loads, wait for a while, and end with those who gave them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from trims_predictors.endpoint.load_requests import LoadRequests

from trims.core.errors import CapacityError, DeadlineError, InUseError, ModelNotFoundError, TooLargeError, TrimsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Daemon:
    """Loads when the test lets it, or answers what the test has put into `answers`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, float | None]] = []
        self.ended: list[str] = []
        self.answers: list[TrimsError] = []
        self.go = asyncio.Event()
        #: Predictors of the pool that are idle.
        self.idle = 0

    async def make_way(self, _place: str | None = None) -> bool:
        self.idle -= 1
        return self.idle >= 0

    async def load(self, name: str, place: str | None = None, *, deadline_s: float | None = None) -> str:
        self.asked.append((name, place, deadline_s))
        if self.answers:
            raise self.answers.pop(0)
        try:
            await self.go.wait()
        finally:
            self.ended.append(name)
        return f"{name} at {place}"


def drive(work: Callable[[Daemon, LoadRequests], Awaitable[None]], **given: Any) -> None:
    async def run() -> None:
        daemon = Daemon()
        loads = LoadRequests(daemon, daemon.make_way, **given)  # type: ignore[arg-type]
        await asyncio.wait_for(work(daemon, loads), 60)
        assert not loads._running

    asyncio.run(run())


async def ordered(loads: LoadRequests, *orders: tuple[str, str | None]) -> list[asyncio.Task[Any]]:
    """Orders that have reached the daemon, as far as it takes them."""
    tasks = [asyncio.ensure_future(loads.load(*order)) for order in orders]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_orders_for_the_same_model_and_place_share_a_load() -> None:
    async def work(daemon: Daemon, loads: LoadRequests) -> None:
        tasks = await ordered(loads, ("m", None), ("m", None), ("m", "cpu"), ("n", None))
        assert len(daemon.asked) == 3
        daemon.go.set()
        assert await asyncio.gather(*tasks) == ["m at None", "m at None", "m at cpu", "n at None"]
        await loads.load("m")
        assert len(daemon.asked) == 4, "a later order finds out by itself"

    drive(work)


def test_a_load_ends_with_the_last_order_that_is_given_up() -> None:
    async def work(daemon: Daemon, loads: LoadRequests) -> None:
        first, second = await ordered(loads, ("m", None), ("m", None))
        first.cancel()
        await asyncio.wait((first,))
        assert daemon.ended == []
        second.cancel()
        (third,) = await ordered(loads, ("m", None))
        assert daemon.ended == ["m"]
        daemon.go.set()
        assert await third == "m at None"
        assert daemon.ended == ["m", "m"]

    drive(work)


def test_only_so_many_loads_run_and_one_that_is_given_up_makes_way() -> None:
    async def work(daemon: Daemon, loads: LoadRequests) -> None:
        tasks = await ordered(loads, ("a", None), ("b", None), ("c", None), ("d", None))
        assert [name for name, *_ in daemon.asked] == ["a", "b"]
        tasks[2].cancel()
        tasks[0].cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert [name for name, *_ in daemon.asked] == ["a", "b", "d"]
        daemon.go.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    drive(work, at_once=2)


@pytest.mark.parametrize("lack", [CapacityError("no room"), InUseError("it leaves")])
def test_what_lacks_is_waited_for_but_not_for_long(lack: TrimsError) -> None:
    async def work(daemon: Daemon, loads: LoadRequests) -> None:
        daemon.go.set()
        daemon.answers = [lack]
        assert await loads.load("m") == "m at None"
        daemon.answers = [lack, DeadlineError("late")]
        assert await loads.load("m") == "m at None", "it may have begun to fill"
        daemon.answers = [lack, DeadlineError("late"), lack]
        with pytest.raises(type(lack), match=str(lack)):
            await loads.load("m")
        assert [deadline_s for *_, deadline_s in daemon.asked] == [None, 7.0, None, 7.0, None, None, 7.0, None]

    drive(work, patience_s=7.0)


def test_for_room_idle_predictors_end_one_after_the_other_and_for_readers_none() -> None:
    async def work(daemon: Daemon, loads: LoadRequests) -> None:
        daemon.go.set()
        daemon.idle, daemon.answers = 3, [CapacityError("no room"), DeadlineError("late")]
        assert await loads.load("m") == "m at None"
        assert daemon.idle == 2, "its load has begun after the first one"
        daemon.answers = [InUseError("it leaves")]
        await loads.load("m")
        assert daemon.idle == 2
        daemon.answers = [CapacityError("no room"), DeadlineError("late")] * 4
        with pytest.raises(CapacityError):
            await loads.load("m")
        assert len(daemon.answers) == 3, "it was asked once more for each that has ended"

    drive(work, patience_s=7.0)


@pytest.mark.parametrize("error", [TooLargeError("too large"), ModelNotFoundError("no model"), DeadlineError("late")])
def test_what_cannot_change_is_told_at_once_to_all_who_ordered_it(error: TrimsError) -> None:
    async def work(daemon: Daemon, loads: LoadRequests) -> None:
        daemon.answers = [error]
        tasks = await ordered(loads, ("m", None), ("m", None))
        assert await asyncio.gather(*tasks, return_exceptions=True) == [error, error]
        assert len(daemon.asked) == 1

    drive(work)
