"""Work for a client ends once the client has hung up, and only then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from nursing import until
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from trims_predictors.endpoint.disconnects import unless_gone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Client:
    """Client that sends what the test puts into its queue."""

    def __init__(self) -> None:
        self.sends: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.request = Request({"type": "http"}, self.sends.get)

    def hangs_up(self) -> None:
        self.sends.put_nowait({"type": "http.disconnect"})


class Work:
    """An answer that comes when it is let to."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.began = asyncio.Event()
        self.cancelled = False

    async def run(self) -> Response:
        self.began.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return Response("done")


def drive(story: Callable[[Client, Work], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(story(Client(), Work()), 60)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left behind"

    asyncio.run(run())


def test_the_answer_of_the_work_is_the_answer_while_the_client_waits() -> None:
    async def story(client: Client, work: Work) -> None:
        work.may_end.set()
        answer = await unless_gone(client.request, work.run())
        assert (answer.status_code, answer.body) == (200, b"done")
        await asyncio.sleep(0)

    drive(story)


def test_a_client_that_hangs_up_ends_the_work() -> None:
    async def story(client: Client, work: Work) -> None:
        answering = asyncio.ensure_future(unless_gone(client.request, work.run()))
        await work.began.wait()
        client.hangs_up()
        with pytest.raises(ClientDisconnect):
            await answering
        assert work.cancelled

    drive(story)


def test_what_else_a_client_sends_does_not_end_the_work() -> None:
    async def story(client: Client, work: Work) -> None:
        client.sends.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        answering = asyncio.ensure_future(unless_gone(client.request, work.run()))
        await until(lambda: client.sends.empty())
        work.may_end.set()
        assert (await answering).status_code == 200
        await asyncio.sleep(0)

    drive(story)


def test_the_answer_counts_that_is_there_when_the_client_hangs_up() -> None:
    async def story(client: Client, work: Work) -> None:
        answering = asyncio.ensure_future(unless_gone(client.request, work.run()))
        await work.began.wait()
        work.may_end.set()
        client.hangs_up()
        assert (await answering).status_code == 200
        await asyncio.sleep(0)

    drive(story)


def test_an_error_of_the_work_is_raised() -> None:
    async def fail() -> Response:
        raise LookupError("no such model")

    async def story(client: Client, work: Work) -> None:
        del work
        with pytest.raises(LookupError, match="no such model"):
            await unless_gone(client.request, fail())
        await asyncio.sleep(0)

    drive(story)


def test_a_request_that_is_cancelled_takes_its_work_along() -> None:
    async def story(client: Client, work: Work) -> None:
        answering = asyncio.ensure_future(unless_gone(client.request, work.run()))
        await work.began.wait()
        answering.cancel()
        await asyncio.wait((answering,))
        await asyncio.sleep(0)
        assert answering.cancelled()
        assert work.cancelled

    drive(story)
