"""Bodies in pieces: whole, with their length, and no sooner than the client takes them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgi import call
from trims_predictors.endpoint.http import large_responses
from trims_predictors.endpoint.http.large_responses import LargeResponse

PARTS = [b"abc", memoryview(b"defghij"), b"", memoryview(b"kl")]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_responses, "_PIECE_BYTES", 4)


def test_a_body_in_parts_arrives_whole_with_its_length() -> None:
    reply = asyncio.run(call(LargeResponse(PARTS, "application/json", {"x-more": "1"}), "GET", "/"))
    assert (reply.status, reply.body) == (200, b"abcdefghijkl")
    assert reply.headers == {"content-length": "12", "content-type": "application/json", "x-more": "1"}


def test_no_piece_is_larger_than_what_is_given_to_the_server_at_once() -> None:
    sent: list[Any] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("body"))

    async def run() -> None:
        await LargeResponse(PARTS, "text/plain", {})({"type": "http"}, None, send)  # type: ignore[arg-type]

    asyncio.run(run())
    assert sent == [None, b"abc", b"defg", b"hij", b"kl", b""]
