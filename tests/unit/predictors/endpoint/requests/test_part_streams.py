"""Parts of an answer, from the run that makes them to the protocol that sends them."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from trims_predictors.endpoint.requests import part_streams
from trims_predictors.endpoint.requests.part_streams import parts_of
from trims_predictors.tensors import Tensor, from_array

from trims.core.errors import CapacityError, PredictorError


def part(number: int) -> Tensor:
    return from_array("x", np.array([number]))


class Answer:
    outputs = ("whole",)


async def collected(start: Any, most: int | None = None) -> list[Any]:
    found = []
    async for part in parts_of(start):
        found.append((part.tensors, part.end is not None))
        if most is not None and len(found) == most:
            break
    return found


def test_parts_come_in_their_order_and_the_answer_after_them() -> None:
    async def start(take: Any) -> Any:
        for number in range(3):
            take((part(number),))
            await asyncio.sleep(0)
        return "deployment", Answer()

    assert asyncio.run(collected(start)) == [
        *[((part(number),), False) for number in range(3)],
        (("whole",), True),
    ]


def test_an_error_comes_after_the_parts_before_it() -> None:
    async def start(take: Any) -> Any:
        take((part(1),))
        raise PredictorError("it died")

    async def work() -> None:
        stream = parts_of(start)
        assert (await anext(stream)).tensors == (part(1),)
        with pytest.raises(PredictorError, match="it died"):
            await anext(stream)

    asyncio.run(work())


def test_a_reader_that_leaves_ends_the_run() -> None:
    ended = asyncio.Event()

    async def start(take: Any) -> Any:
        try:
            take((part(1),))
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def work() -> None:
        stream = parts_of(start)
        await anext(stream)
        await stream.aclose()
        await asyncio.wait_for(ended.wait(), 60)

    asyncio.run(work())


def test_parts_that_are_not_read_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_streams, "_MOST_WAITING_BYTES", 5000)

    async def start(take: Any) -> Any:
        for _ in range(10):
            take((from_array("x", np.zeros(100)),))
        await asyncio.Event().wait()

    with pytest.raises(CapacityError):
        asyncio.run(collected(start))
