"""Lanes: spans that overlap without one containing the other cannot stand on one track of a viewer."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trims.trace.levels import Level
    from trims.trace.reader import Process, Record

#: Track of a span: its process, its level, and a number among tracks of these.
Lane = tuple["Process", "Level", int]


def in_lanes(spans: Iterable[Record], end_ns: int) -> Iterator[tuple[Record, Lane, int]]:
    """Yield each span with its lane and its end; spans of one lane contain each other or do not overlap.

    Args:
        end_ns: End of those that have none.
    """
    open_ends: defaultdict[tuple[Process, Level], list[list[int]]] = defaultdict(list)
    for span in sorted(spans, key=lambda each: (each.start_ns, -(each.end_ns or end_ns))):
        until_ns = max(span.end_ns or end_ns, span.start_ns)
        lanes = open_ends[span.process, span.level]
        number = next((each for each, ends in enumerate(lanes) if _fits(ends, span.start_ns, until_ns)), len(lanes))
        if number == len(lanes):
            lanes.append([])
        lanes[number].append(until_ns)
        yield span, (span.process, span.level, number), until_ns


def _fits(ends: list[int], start_ns: int, end_ns: int) -> bool:
    """Return whether a span fits on a lane whose open spans end then. Those that are over are removed."""
    while ends and ends[-1] <= start_ns:
        ends.pop()
    return not ends or end_ns <= ends[-1]


def name_of(lane: Lane) -> str:
    """Return the title of a lane's track."""
    _, level, number = lane
    return level.name.lower() + (f" {number + 1}" if number else "")
