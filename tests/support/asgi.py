"""Calls of an ASGI application without a server: what went in, what came out."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Reply:
    """Reply to one call."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


async def call(
    app: Any,
    method: str,
    path: str,
    body: bytes | object = b"",
    gone: asyncio.Event | None = None,
    **headers: str | None,
) -> Reply:
    """One request; `gone` is when the client hangs up. Underscores in header names stand for dashes, None for none."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    path, _, query = path.partition("?")
    sent = [{"type": "http.request", "body": body, "more_body": False}]
    given = {"host": "localhost:8000", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http", "method": method, "path": unquote(path), "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items() if value is not None],
        "scheme": "http", "server": ("localhost", 8000), "client": ("localhost", 1), "http_version": "1.1",
        "root_path": "", "asgi": {"version": "3.0"},
    }  # fmt: skip
    received: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if sent:
            return sent.pop()
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        received.append(message)

    await app(scope, receive, send)
    start, *parts = received
    found = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return Reply(start["status"], found, b"".join(part.get("body", b"") for part in parts))
