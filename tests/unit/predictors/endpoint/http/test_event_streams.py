"""Server-sent events, and clients that hang up between them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from trims_predictors.endpoint.http.event_streams import event, event_stream

from trims.core.errors import CallerError


class Client:
    """The other side of an ASGI application."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    def request(self) -> Request:
        return Request({"type": "http", "headers": []}, self.receive)


def test_an_event_ends_with_an_empty_line() -> None:
    assert event(b"x") == b"data: x\n\n"


def test_events_are_sent_as_they_come() -> None:
    async def work() -> None:
        client, lasting, ended = Client(), contextlib.ExitStack(), []

        async def events() -> Any:
            yield b"a"
            assert [each.get("body") for each in client.sent] == [None, b"a"]
            yield b"b"

        with lasting:
            lasting.callback(ended.append, True)
            response = await event_stream(client.request(), events(), lasting)
        assert not ended  # it goes on until the response has been sent
        await response({}, client.receive, client.send)
        assert ended
        assert [each.get("body") for each in client.sent] == [None, b"a", b"b", b""]
        assert client.sent[0]["status"] == 200
        assert (b"content-type", b"text/event-stream; charset=utf-8") in client.sent[0]["headers"]
        assert not client.sent[-1]["more_body"]

    asyncio.run(work())


def test_a_client_that_hangs_up_closes_the_generator() -> None:
    async def work() -> None:
        client, closed = Client(), []

        async def events() -> Any:
            try:
                yield b"a"
                client.gone.set()
                await asyncio.Event().wait()
                yield b"b"
            finally:
                closed.append(True)

        with contextlib.ExitStack() as lasting:
            response = await event_stream(client.request(), events(), lasting)
        await asyncio.wait_for(response({}, client.receive, client.send), 60)
        assert closed
        assert b"b" not in [each.get("body") for each in client.sent]

    asyncio.run(work())


def test_a_client_that_hangs_up_before_the_first_event_gets_none() -> None:
    async def work() -> None:
        client, closed = Client(), []
        client.gone.set()

        async def events() -> Any:
            try:
                await asyncio.Event().wait()
                yield b"a"
            finally:
                closed.append(True)

        with contextlib.ExitStack() as lasting, pytest.raises(ClientDisconnect):
            await event_stream(client.request(), events(), lasting)
        assert closed

    asyncio.run(work())


def test_an_error_before_the_first_event_is_raised() -> None:
    async def work() -> None:
        async def events() -> Any:
            raise CallerError("wrong")
            yield b""

        ended: list[bool] = []
        with contextlib.ExitStack() as lasting:
            lasting.callback(ended.append, True)
            with pytest.raises(CallerError):
                await event_stream(Client().request(), events(), lasting)
        assert ended

    asyncio.run(work())
