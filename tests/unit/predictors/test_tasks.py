"""Work in the background: waited for, cancelled, and reported if it fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trims_predictors.tasks import Background

from trims.logs import about, facts

if TYPE_CHECKING:
    import pytest


async def fail(error: Exception) -> None:
    raise error


def test_work_that_fails_is_told_with_its_owner(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        background = Background("the pool")
        background.start(fail(ValueError("no such luck")))
        assert background
        await background.wait()
        assert not background

    asyncio.run(work())
    (record,) = caplog.records
    assert record.getMessage() == "a bug in trims: the work of the pool failed"
    assert record.exc_info is not None


def test_what_the_owner_explains_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    explained: list[BaseException] = []

    async def work() -> None:
        background = Background("the warm pool", lambda error: not explained.append(error))
        background.start(fail(OSError("gone")))
        await background.wait()

    asyncio.run(work())
    assert [str(error) for error in explained] == ["gone"]
    assert not caplog.records


def test_work_that_is_cancelled_ends_and_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        background = Background("the pool")
        background.start(asyncio.sleep(1000))
        background.cancel()
        await background.wait()
        assert not background

    asyncio.run(work())
    assert not caplog.records


def test_work_is_not_about_the_request_that_it_was_begun_for() -> None:
    async def run() -> None:
        seen: list[dict[str, object]] = []

        async def work() -> None:
            seen.append(dict(facts()))

        background = Background("a test")
        with about(request="r7"):
            background.start(work())
        await background.wait()
        assert seen == [{}]

    asyncio.run(run())
