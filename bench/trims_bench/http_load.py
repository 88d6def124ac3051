"""Many connections that ask one server without pause: in the environment of clients by others, for their aiohttp."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

_TOLERANCE = 1e-3
#: Seconds that are not counted: connections are made, and the server's code paths are warm.
_WARM_UP_S = 1.0


def ask(
    *, url: str, body: str, connections: int, seconds: float, expected: list[float], speaks_v2: bool
) -> dict[str, Any]:
    """Requests of so many connections for a while.

    Args:
        url: That takes them.
        body: JSON of each request.
        connections: Each asks again as soon as it has its answer.
        seconds: For which requests are counted, after a moment that warms up.
        expected: Numbers of the right answer.
        speaks_v2: Whether an answer is one of the Open Inference Protocol, else `{"y": ...}`.

    Returns:
        `per_second`, the requests answered right; `answered`; `failed`; `why`, of the first that failed.
    """
    return asyncio.run(_ask(url, body.encode(), connections, seconds, expected, speaks_v2=speaks_v2))


async def _ask(
    url: str, body: bytes, connections: int, seconds: float, expected: list[float], *, speaks_v2: bool
) -> dict[str, Any]:
    import aiohttp

    begin = time.monotonic() + _WARM_UP_S
    told = _Told(begin, begin + seconds)
    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(connector=connector, headers={"Content-Type": "application/json"}) as session:

        async def one() -> None:
            while time.monotonic() < told.end_s:
                try:
                    async with session.post(url, data=body) as answer:
                        content = await answer.read()
                        wrong = "" if answer.status == 200 else f"{answer.status} {content[:200]!r}"
                except (aiohttp.ClientError, OSError) as error:
                    content, wrong = b"", f"{type(error).__name__}: {error}"
                told.count(wrong or _difference(content, expected, speaks_v2))

        await asyncio.gather(*(one() for _ in range(connections)))
    return {"per_second": round(told.answered / seconds), "answered": told.answered, **told.failures()}


def _difference(content: bytes, expected: list[float], speaks_v2: bool) -> str:
    """Return what is wrong with an answer; empty if nothing is."""
    try:
        answer = json.loads(content)
        found = answer["outputs"][0]["data"] if speaks_v2 else answer["y"][0]
    except (ValueError, LookupError, TypeError) as error:
        return f"the answer {content[:200]!r} has no numbers: {error!r}"
    close = len(found) == len(expected) and all(
        abs(ours - theirs) <= _TOLERANCE for ours, theirs in zip(found, expected, strict=True)
    )
    return "" if close else f"the answer is {found}, not {expected}"


class _Told:
    """Counts answers within a time."""

    def __init__(self, begin_s: float, end_s: float) -> None:
        self.end_s = end_s
        self.answered = 0
        self._begin_s = begin_s
        self._wrong: list[str] = []

    def count(self, wrong: str) -> None:
        """One answer; failures count also while it warms up, so that none is passed over."""
        if wrong:
            self._wrong.append(wrong)
        elif self._begin_s <= time.monotonic() <= self.end_s:
            self.answered += 1

    def failures(self) -> dict[str, Any]:
        """Return the number of wrong answers, and the words of the first."""
        return {"failed": len(self._wrong), "why": self._wrong[0] if self._wrong else ""}
