"""Chrome's JSON of traces, which chrome://tracing, Perfetto and other viewers open.

Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from trims.trace.export.lanes import in_lanes, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trims.trace.export.lanes import Lane
    from trims.trace.reader import Count, Process, Record


def write(file: IO[str], spans: Iterable[Record], counts: Iterable[Count] = ()) -> None:
    """Write spans and counters as one JSON object.

    Args:
        file: Opened for text.
        spans: Spans of any number of processes of one machine, since one start of it.
    """
    file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
    for number, event in enumerate(_events(list(spans), counts)):
        file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":"), default=str))
    file.write("\n]}\n")


def _events(spans: list[Record], counts: Iterable[Count]) -> Iterator[dict[str, Any]]:
    end_ns = max((max(each.start_ns, each.end_ns) for each in spans), default=0)
    processes: set[Process] = set()
    tracks: dict[Lane, int] = {}
    by_id = {each.span_id: each for each in spans}
    where: dict[str, int] = {}
    for span, lane, until_ns in in_lanes(spans, end_ns):
        pid = span.process.pid
        if span.process not in processes:
            processes.add(span.process)
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{span.process.role} {pid}"}}
        if lane not in tracks:
            tracks[lane] = len(tracks) + 1
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tracks[lane], "args": {"name": name_of(lane)}}
        where[span.span_id] = tracks[lane]
        arguments = {**span.attributes, "trace_id": span.trace_id, "span_id": span.span_id}
        if not span.is_finished:
            arguments["unfinished"] = True
        yield {
            "ph": "X", "name": span.name, "cat": span.level.name.lower(), "pid": pid, "tid": tracks[lane],
            "ts": span.start_ns / 1000, "dur": (until_ns - span.start_ns) / 1000, "args": arguments,
        }  # fmt: skip
    for span in spans:
        parent = by_id.get(span.parent_id)
        if parent is not None and parent.process != span.process:
            yield from _flow(parent, span, where)
    for count in counts:
        yield {
            "ph": "C", "name": count.name, "pid": count.process.pid, "ts": count.at_ns / 1000,
            "args": {"value": count.value},
        }  # fmt: skip


def _flow(parent: Record, child: Record, where: dict[str, int]) -> Iterator[dict[str, Any]]:
    same = {"cat": "flow", "name": "calls", "id": child.span_id}
    yield {**same, "ph": "s", "pid": parent.process.pid, "tid": where[parent.span_id], "ts": parent.start_ns / 1000}
    yield {
        **same, "ph": "f", "bp": "e", "pid": child.process.pid, "tid": where[child.span_id],
        "ts": child.start_ns / 1000,
    }  # fmt: skip
