"""Reads what processes recorded: their files in a folder, as processes with spans, and as traces across processes."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.trace.levels import Level
from trims.trace.recorder import SUFFIX, VERSION, is_row

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds between two looks for spans; processes write them ten times a second.
_LOOK_S = 0.15


@dataclass(frozen=True, slots=True)
class Process:
    """A process that recorded spans.

    Attributes:
        role: What it is, such as `daemon`.
        unix_ns: When its file was made, by the clock on the wall.
        monotonic_ns: The same moment on the clock of the spans.
        boot: Start of the machine that the clock counts from.
    """

    pid: int
    role: str
    unix_ns: int
    monotonic_ns: int
    boot: str = ""

    def wall_ns(self, monotonic_ns: int) -> int:
        """Return a moment of this machine's monotonic clock in nanoseconds since 1970, unaffected by later steps."""
        return self.unix_ns + monotonic_ns - self.monotonic_ns


@dataclass(slots=True)
class Record:
    """A span as it was read.

    Attributes:
        end_ns: 0 for a span that was open when its process wrote last: it is still running, or was killed.
    """

    process: Process
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    level: Level
    start_ns: int
    end_ns: int
    thread: int
    attributes: dict[str, Any]

    @property
    def is_finished(self) -> bool:
        """Return whether its end was recorded."""
        return self.end_ns > 0

    @property
    def seconds(self) -> float:
        """Return its length; 0 for one without an end."""
        return max(0, self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Count:
    """Value of a counter at one moment of the monotonic clock."""

    process: Process
    name: str
    at_ns: int
    value: float


@dataclass(slots=True)
class Trace:
    """Spans of one trace, in the order in which they began."""

    trace_id: str
    spans: list[Record] = field(default_factory=list)

    @property
    def roots(self) -> list[Record]:
        """Return the spans whose parent was not recorded."""
        known = {each.span_id for each in self.spans}
        return [each for each in self.spans if each.parent_id not in known]

    def children(self) -> dict[str, list[Record]]:
        """Return the spans by the id of their parent."""
        found: defaultdict[str, list[Record]] = defaultdict(list)
        for each in self.spans:
            found[each.parent_id].append(each)
        return dict(found)

    @property
    def start_ns(self) -> int:
        """Return when its first span began."""
        return min(each.start_ns for each in self.spans)

    @property
    def end_ns(self) -> int:
        """Return when its last span ended, or began if it has no end."""
        return max(max(each.start_ns, each.end_ns) for each in self.spans)


def read_traces(folder: Path | str, trace_id: str | None = None, *, pid: int | None = None) -> list[Trace]:
    """Return the traces in a folder, in the order in which they began.

    Args:
        folder: Where processes write; it need not be there.
        trace_id: The only one wanted; None for all.
        pid: Process that wrote the only files that are read; None for all.
    """
    traces: dict[str, Trace] = {}
    for span in read_spans(folder, pid=pid):
        if trace_id in (None, span.trace_id):
            traces.setdefault(span.trace_id, Trace(span.trace_id)).spans.append(span)
    for trace in traces.values():
        trace.spans.sort(key=lambda each: (each.start_ns, -each.end_ns))
    return sorted(traces.values(), key=lambda trace: trace.start_ns)


def wait_for_trace(folder: Path | str, trace_id: str, patience_s: float) -> Trace | None:
    """Return a trace once all processes have written their spans of it: two looks find the same ones, all ended.

    Args:
        folder: Where processes write.
        trace_id: Of the trace.
        patience_s: Seconds after which it is returned as it is; None then if nothing was written.
    """
    until_s, before = time.monotonic() + patience_s, -1
    while True:
        found = read_traces(folder, trace_id)
        spans = found[0].spans if found else []
        if spans and len(spans) == before and all(each.is_finished for each in spans):
            return found[0]
        if time.monotonic() > until_s:
            return found[0] if found else None
        before = len(spans)
        time.sleep(_LOOK_S)


def read_spans(folder: Path | str, *, pid: int | None = None) -> Iterator[Record]:
    """Yield all spans of a folder, or what one process wrote; each once, with its end if that was recorded."""
    for path in sorted(Path(folder).glob(f"*{SUFFIX}" if pid is None else f"*-{pid}{SUFFIX}")):
        unfinished: dict[str, Record] = {}
        for process, message in _batches(path):
            for row in message.get("open", ()):
                span = _record(process, row)
                unfinished[span.span_id] = span
            for row in message["spans"]:
                span = _record(process, row)
                unfinished.pop(span.span_id, None)
                yield span
        yield from unfinished.values()


def read_counts(folder: Path | str) -> Iterator[Count]:
    """Yield all values of counters, in the order in which each process recorded them."""
    for path in sorted(Path(folder).glob(f"*{SUFFIX}")):
        for process, message in _batches(path):
            for name, at_ns, value in message.get("counters", ()):
                yield Count(process, str(name), int(at_ns), float(value))


def _batches(path: Path) -> Iterator[tuple[Process, dict[str, Any]]]:
    process: Process | None = None
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    message = json.loads(line)
                    if process is None:
                        process = _process(message)
                        continue
                    if not all(is_row(row) for row in (*message["spans"], *message.get("open", ()))):
                        continue
                    whose = _child(process, message["of"]) if "of" in message else process
                except (ValueError, KeyError, TypeError):
                    if process is None:
                        return  # of another version
                    continue  # the process was killed while it wrote this line
                yield whose, message
    except OSError:  # it was removed meanwhile
        return


def _process(message: dict[str, Any]) -> Process:
    if message["trims"] != VERSION:
        raise ValueError(f"spans of the form {message['trims']}")
    return Process(
        int(message["pid"]), str(message["role"]), int(message["unix_ns"]), int(message["monotonic_ns"]),
        str(message["boot"]),
    )  # fmt: skip


def _child(process: Process, of: list[Any]) -> Process:
    pid, role = of
    return Process(int(pid), str(role), process.unix_ns, process.monotonic_ns, process.boot)


def _record(process: Process, row: list[Any]) -> Record:
    trace_id, span_id, parent_id, name, level, start_ns, end_ns, thread, attributes = row
    return Record(
        process, trace_id, span_id, parent_id, name, Level(level), int(start_ns), int(end_ns), int(thread),
        dict(attributes),
    )  # fmt: skip
