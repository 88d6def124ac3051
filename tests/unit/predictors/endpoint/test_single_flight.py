"""One look for all that ask within a moment, and never a long wait for it."""

from __future__ import annotations

import asyncio

from trims_predictors.endpoint.single_flight import SingleFlight


class Looked:
    """Something slow to look at."""

    def __init__(self) -> None:
        self.times = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def ask(self) -> int:
        self.times += 1
        await self.answers.wait()
        return self.times


def test_many_that_ask_in_a_moment_share_one_look_until_it_expires() -> None:
    async def run() -> None:
        looked = Looked()
        look = SingleFlight(looked.ask, fresh_s=3600.0, patience_s=30.0)
        assert await asyncio.gather(*(look.look() for _ in range(5))) == [1] * 5
        look.expire()
        assert await asyncio.gather(*(look.look() for _ in range(5))) == [2] * 5
        assert looked.times == 2
        await look.close()

    asyncio.run(run())


def test_a_look_that_hangs_is_not_waited_for_and_serves_those_that_ask_later() -> None:
    async def run() -> None:
        looked = Looked()
        looked.answers.clear()
        impatient = SingleFlight(looked.ask, fresh_s=3600.0, patience_s=0.001)
        assert await impatient.look() is None
        assert await impatient.look() is None
        assert looked.times == 1, "the first look is still under way"
        looked.answers.set()
        while await impatient.look() is None:
            pass
        assert looked.times == 1
        await impatient.close()

    asyncio.run(run())


def test_a_look_that_is_under_way_can_be_given_up() -> None:
    async def run() -> None:
        looked = Looked()
        looked.answers.clear()
        look = SingleFlight(looked.ask, fresh_s=1.0, patience_s=30.0)
        await look.close()
        looking = asyncio.ensure_future(look.look())
        await asyncio.sleep(0)
        await look.close()
        assert await looking is None

    asyncio.run(run())
