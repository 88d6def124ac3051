"""Spans made by hand, for tests of what reads traces."""

from __future__ import annotations

from typing import Any

from trims.trace.levels import Level
from trims.trace.reader import Process, Record, Trace

TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENT, DAEMON = Process(1, "client", 1_000_000, 500, "b"), Process(2, "daemon", 2_000_000, 700, "b")


def span_id(name: str) -> str:
    return name.encode().hex().ljust(16, "0")[:16]


def span(
    name: str, begin_ns: int, end_ns: int, parent: str = "", process: Process = CLIENT, level: Level = Level.MODEL,
    **attributes: Any,
) -> Record:  # fmt: skip
    own = span_id(parent) if parent else ""
    return Record(process, TRACE, span_id(name), own, name, level, begin_ns, end_ns, 7, attributes)


def trace(*spans: Record) -> Trace:
    return Trace(TRACE, sorted(spans, key=lambda each: (each.start_ns, -each.end_ns)))


def a_request() -> Trace:
    """A client's open of 100 ns, of which a daemon serves 60, 30 of these in two steps that overlap."""
    return trace(
        span("open", 1000, 1100, level=Level.APPLICATION, model="m"),
        span("serve", 1020, 1080, "open", DAEMON, level=Level.APPLICATION),
        span("plan", 1030, 1050, "serve", DAEMON, image_bytes=4096),
        span("fill", 1040, 1060, "serve", DAEMON),
        span("copy", 1070, 0, "serve", DAEMON, share=0.5, warm=True),
    )
