"""Reads what processes recorded: their files in a folder, as processes with spans, and as traces across processes."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from trims.trace.levels import Level
from trims.trace.recorder import SUFFIX, VERSION, is_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Seconds between two looks for spans; processes write them ten times a second.
_LOOK_S = 0.15
#: Bytes that are read at most to list the traces that were recorded last: a second or two.
_MOST_LISTED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Process:
    """A process that recorded spans.

    Attributes:
        role: What it is, such as `daemon`.
        unix_ns: When its file was made, by the clock on the wall.
        monotonic_ns: When its file was made, on the clock of the spans.
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


@dataclass(slots=True)
class Summary:
    """A trace as a line of a list.

    Attributes:
        began_unix_ns: When that began, by the clock on the wall.
        start_ns: When that began, on the clock of the spans.
        end_ns: When its last span ended, or began if it has no end.
        processes: Ids of its processes.
    """

    trace_id: str
    name: str
    began_unix_ns: int
    start_ns: int
    end_ns: int
    spans: int = 0
    processes: set[int] = field(default_factory=set)

    @property
    def seconds(self) -> float:
        """Return its length."""
        return (self.end_ns - self.start_ns) / 1e9

    def add(self, span: Record) -> None:
        """Count one more span."""
        if span.start_ns < self.start_ns:
            self.name, self.start_ns = span.name, span.start_ns
            self.began_unix_ns = span.process.wall_ns(span.start_ns)
        self.end_ns = max(self.end_ns, span.start_ns, span.end_ns)
        self.spans += 1
        self.processes.add(span.process.pid)

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "trace_id": self.trace_id, "name": self.name, "began_unix_ns": self.began_unix_ns,
            "seconds": self.seconds, "spans": self.spans, "processes": len(self.processes),
        }  # fmt: skip


def summarize(spans: Iterable[Record]) -> dict[str, Summary]:
    """Return a summary of each trace that has one of these spans, by its id."""
    found: dict[str, Summary] = {}
    for span in spans:
        summary = found.get(span.trace_id)
        if summary is None:
            began_unix_ns = span.process.wall_ns(span.start_ns)
            summary = Summary(span.trace_id, span.name, began_unix_ns, span.start_ns, span.start_ns)
            found[span.trace_id] = summary
        summary.add(span)
    return found


def list_traces(folder: Path | str, most: int | None = None) -> list[Summary]:
    """Return the traces in a folder, the last one first.

    Args:
        folder: Where processes write; it need not be there.
        most: How many are wanted; None for all. For fewer than all only files are read that may hold one of them, the
            newest first, and of these `_MOST_LISTED_BYTES`: traces beyond these bytes are not listed.
    """
    spans = _all_spans(folder) if most is None else _newest_spans(folder, most)
    found = sorted(summarize(spans).values(), key=lambda each: each.began_unix_ns, reverse=True)
    return found[:most]


def _all_spans(folder: Path | str) -> Iterator[Record]:
    for _, _, path in _newest_files(folder):
        yield from _spans_in(path)


def _newest_spans(folder: Path | str, most: int) -> Iterator[Record]:
    left, begun = _MOST_LISTED_BYTES, dict[str, int]()
    for written_ns, size, path in _newest_files(folder):
        # What a file holds began before that file was written: traces that began later are whole.
        if left <= 0 or (len(begun) >= most and sum(each > written_ns for each in begun.values()) >= most):
            return
        for span in _spans_in(path, most_bytes=left):
            began_ns = span.process.wall_ns(span.start_ns)
            begun[span.trace_id] = min(began_ns, begun.get(span.trace_id, began_ns))
            yield span
        left -= size


def _newest_files(folder: Path | str) -> list[tuple[int, int, Path]]:
    """Return when each file was written last, its bytes and its path, the newest first."""
    found = []
    for path in Path(folder).glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):  # it was removed meanwhile
            about = path.stat()
            found.append((about.st_mtime_ns, about.st_size, path))
    return sorted(found, reverse=True)


def read_traces(folder: Path | str, trace_id: str = "", *, pid: int | None = None) -> list[Trace]:
    """Return the traces in a folder, in the order in which they began.

    Args:
        folder: Where processes write; it need not be there.
        trace_id: What the ids of those begin with that are wanted; empty for all.
        pid: Process that wrote the only files that are read; None for all.
    """
    traces: dict[str, Trace] = {}
    for span in read_spans(folder, pid=pid, trace_id=trace_id):
        traces.setdefault(span.trace_id, Trace(span.trace_id)).spans.append(span)
    for trace in traces.values():
        trace.spans.sort(key=lambda each: (each.start_ns, -each.end_ns))
    return sorted(traces.values(), key=lambda trace: trace.start_ns)


def wait_for_trace(folder: Path | str, trace_id: str, patience_s: float) -> Trace | None:
    """Return a trace once all processes have written their spans of it: two looks find the same ones, all ended.

    Args:
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


def read_spans(folder: Path | str, *, pid: int | None = None, trace_id: str = "") -> Iterator[Record]:
    """Yield all spans of a folder, or what one process wrote; each once, with its end if that was recorded.

    With `trace_id` only those of traces whose ids begin so.
    """
    for path in sorted(Path(folder).glob(f"*{SUFFIX}" if pid is None else f"*-{pid}{SUFFIX}")):
        yield from _spans_in(path, trace_id)


def _spans_in(path: Path, trace_id: str = "", most_bytes: int | None = None) -> Iterator[Record]:
    unfinished: dict[str, Record] = {}
    for process, message in _batches(path, trace_id.encode(), most_bytes):
        for row in message.get("open", ()):
            if row[0].startswith(trace_id):
                span = as_record(process, row)
                unfinished[span.span_id] = span
        for row in message["spans"]:
            if row[0].startswith(trace_id):
                span = as_record(process, row)
                unfinished.pop(span.span_id, None)
                yield span
    yield from unfinished.values()


def read_counts(folder: Path | str) -> Iterator[Count]:
    """Yield all values of counters, in the order in which each process recorded them."""
    for path in sorted(Path(folder).glob(f"*{SUFFIX}")):
        for process, message in _batches(path):
            for name, at_ns, value in message.get("counters", ()):
                yield Count(process, str(name), int(at_ns), float(value))


def _batches(
    path: Path, holding: bytes = b"", most_bytes: int | None = None
) -> Iterator[tuple[Process, dict[str, Any]]]:
    """Yield the batches of a file with their process: those that hold some bytes, in the end of the file."""
    process: Process | None = None
    try:
        with path.open("rb") as file:
            for line in _lines(file, most_bytes):
                if process is not None and holding not in line:
                    continue
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


def _lines(file: BinaryIO, most_bytes: int | None) -> Iterator[bytes]:
    """Yield the first line of a file, and those after it that begin in its last bytes; None for all."""
    yield file.readline()
    if most_bytes is not None:
        begin = file.seek(0, os.SEEK_END) - most_bytes
        file.seek(0)
        file.readline()
        if begin > file.tell():
            file.seek(begin)
            file.readline()  # the end of a line
    yield from file


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


def as_record(process: Process, row: list[Any]) -> Record:
    """Return a span of a process as it stands in a file."""
    trace_id, span_id, parent_id, name, level, start_ns, end_ns, thread, attributes = row
    return Record(
        process, trace_id, span_id, parent_id, name, Level(level), int(start_ns), int(end_ns), int(thread),
        dict(attributes),
    )  # fmt: skip
