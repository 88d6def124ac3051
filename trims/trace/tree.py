"""A trace as text: a tree of spans, with times and shares, and what no span accounts for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.trace.reader import Record, Trace

#: Name of the line for time of a span that none of its parts accounts for.
UNATTRIBUTED = "unattributed"


class Line(NamedTuple):
    """A line of the tree.

    Attributes:
        depth: 0 for a span without a parent.
        name: Name of the span, or `UNATTRIBUTED`.
        role: Role of its process; empty for `UNATTRIBUTED`.
        begin_s: Seconds after the first span of the trace began.
        seconds: Length; None for a span without an end.
        share: Part of the first span of its tree, between 0 and 1; None without an end.
        span: Span of the line; None for `UNATTRIBUTED`.
    """

    depth: int
    name: str
    role: str
    begin_s: float
    seconds: float | None
    share: float | None
    span: Record | None


def lines(trace: Trace, least_s: float = 0.0) -> list[Line]:
    """Return the lines of a trace, parents before their parts, parts in the order in which they began.

    Args:
        least_s: Shorter spans, and shorter unattributed times, are left out with all their parts.
    """
    children, start_ns = trace.children(), trace.start_ns
    found: list[Line] = []

    def show(span: Record, depth: int, whole_s: float) -> None:
        whole_s = whole_s or span.seconds
        seconds = span.seconds if span.is_finished else None
        begin_s = (span.start_ns - start_ns) / 1e9
        share = None if seconds is None or not whole_s else seconds / whole_s
        found.append(Line(depth, span.name, span.process.role, begin_s, seconds, share, span))
        parts = children.get(span.span_id, [])
        for part in parts:
            if not part.is_finished or part.seconds >= least_s:
                show(part, depth + 1, whole_s)
        left_s = unattributed_s(span, parts)
        if parts and left_s is not None and left_s >= max(least_s, 1e-9):
            share = left_s / whole_s if whole_s else None
            found.append(Line(depth + 1, UNATTRIBUTED, "", begin_s, left_s, share, None))

    for root in trace.roots:
        show(root, 0, 0.0)
    return found


def unattributed_s(span: Record, parts: list[Record]) -> float | None:
    """Return the seconds of a span in which none of its parts ran; None for a span without an end."""
    if not span.is_finished:
        return None
    covered, until_ns = 0, span.start_ns
    for begin_ns, end_ns in sorted(_within(span, parts)):
        if end_ns > until_ns:
            covered += end_ns - max(begin_ns, until_ns)
            until_ns = end_ns
    return (span.end_ns - span.start_ns - covered) / 1e9


def _within(span: Record, parts: list[Record]) -> Iterator[tuple[int, int]]:
    for part in parts:
        begin_ns = max(part.start_ns, span.start_ns)
        end_ns = min(part.end_ns if part.is_finished else span.end_ns, span.end_ns)
        if end_ns > begin_ns:
            yield begin_ns, end_ns
