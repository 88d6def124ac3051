"""Recorder of one process's spans: appends to memory; a thread writes batches to a file that only this process has.

A disk that fails or stalls costs spans, which are counted, and never time: what does not fit into memory meanwhile is
dropped. A process that is killed loses at most its last batch; spans that were open at its last batch are in the file.

File: one JSON value a line. The first one describes the process; each of the others is a batch:
`{"spans": [[trace, span, parent, name, level, start_ns, end_ns, thread, attributes], ...], "open": [...],
"counters": [[name, at_ns, value], ...], "dropped": n}`, with `"of": [pid, role]` if the spans are those of a child that
cannot write itself. A line that is cut off was being written when the process was killed.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.trace.context import new_id
from trims.trace.levels import Level
from trims.trace.span import row_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trims.trace.context import SpanContext
    from trims.trace.span import Span

    #: Context, parent's id, name, level, begin, end, thread, attributes.
    Ended = tuple[SpanContext, str, str, Level, int, int, int, dict[str, Any] | None]

#: Version of the form of files.
VERSION = 1
SUFFIX = ".spans"
#: Bytes after which a process begins another file, and of all files together: then the oldest are removed.
FILE_BYTES, MOST_BYTES = 64 << 20, 512 << 20
#: Spans in memory: some megabytes, a second of a busy process whose disk stalls.
_MOST_WAITING = 50_000
#: Files of children's spans in memory, and bytes of each: a profile of 10,000 spans has 4 MB.
_MOST_FILES, _MOST_FILE_BYTES = 64, 8 << 20
#: Spans of such a file that are read and written at a time: other threads of this process run between two times.
_AT_ONCE = 200
#: Seconds of a stage, at most: a year.
_LONGEST_S = 3.2e7
#: Moments end before that; with the longest stage they still are numbers of 64 bits.
_MOST_NS = 1 << 62
_MODEL = int(Level.MODEL)
#: Seconds between two batches.
_EVERY_S = 0.1
#: Seconds that the end of a process waits for its last batch.
_LAST_S = 0.5
#: Trace, span, parent, name, level, begin, end, thread, attributes.
_FIELDS = (str, str, str, str, int, int, int, int, dict)
log = logging.getLogger(__name__)


class Collector:
    """Keeps spans until they are taken, for a process that may write no files: its parent records them.

    Args:
        most: Spans that are kept; later ones are counted and dropped.
    """

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self.dropped = 0
        self._rows: list[list[Any]] = []

    def began(self, span: Span) -> None:
        """See `Sink`."""

    def ended(self, span: Span) -> None:
        """See `Sink`."""
        if len(self._rows) < self._most:
            self._rows.append(row_of(span))
        else:
            self.dropped += 1

    def count(self, name: str, value: float) -> None:
        """See `Sink`. Counters of such a process are not kept."""

    def take(self) -> list[list[Any]]:
        """Return what was kept, as rows for `Recorder.adopt`."""
        rows, self._rows = self._rows, []
        return rows

    def close(self) -> None:
        """See `Sink`."""
        self._most = 0

    def begin_again(self) -> None:
        """See `Sink`."""
        self._rows = []


class Recorder:
    """Takes spans of one process."""

    def __init__(self, folder: Path | str, role: str) -> None:
        self.folder = os.fspath(folder)
        self.role = role
        #: Spans that were lost because the disk failed or was too slow.
        self.dropped = 0
        self.begin_again()

    def begin_again(self) -> None:
        """Forget everything, without a word to the file: it is the parent's of this forked process."""
        self._pid = os.getpid()
        #: Plain tuples: thousands of objects that wait would make each collection of garbage dearer.
        self._waiting: deque[Ended] = deque()
        self._stages: deque[tuple[SpanContext, object, object, int, str]] = deque()
        self._adopted: deque[tuple[int, str, list[list[Any]]]] = deque(maxlen=_MOST_WAITING // 10)
        for fd, *_ in getattr(self, "_files", ()):
            os.close(fd)
        self._files: deque[tuple[int, int, int, str]] = deque()
        self._counters: deque[tuple[str, int, float]] = deque(maxlen=_MOST_WAITING)
        self._open: dict[str, Span] = {}
        self._open_written: set[str] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._written = threading.Event()
        self._thread: threading.Thread | None = None
        self._descriptor = -1
        self._failed = False
        self._closing = False

    def began(self, span: Span) -> None:
        """Note that a span is open."""
        self._open[span.context.span_id] = span

    def ended(self, span: Span) -> None:
        """Take a span that has ended. Never blocks."""
        self._open.pop(span.context.span_id, None)
        if self._failed or len(self._waiting) >= _MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.append(
            (
                span.context, span.parent_id, span.name, span.level, span.start_ns, span.end_ns, span.thread,
                span.attributes or None,
            )
        )  # fmt: skip
        if self._thread is None:
            self._start()

    def count(self, name: str, value: float) -> None:
        """Take the value of a counter at this moment. Never blocks."""
        self._counters.append((name, time.monotonic_ns(), value))
        if self._thread is None:
            self._start()

    def adopt(self, rows: object, pid: int, role: str) -> None:
        """Take spans that a child collected. What is no span is left out: a child may send anything. Never blocks.

        Args:
            rows: Result of `Collector.take`.
        """
        found = [row for row in rows if is_row(row)] if isinstance(rows, list) else []
        if found and not self._failed:
            self._adopted.append((pid, role, found))
            if self._thread is None:
                self._start()

    def adopt_stages(self, parent: SpanContext, lengths: object, begins: object, pid: int, role: str) -> None:
        """Take the stages of a child's answer as spans, whatever they are: the thread checks them. Never blocks.

        Args:
            lengths: Seconds by name, which ends in `_s`.
            begins: When each began, in the same order, in nanoseconds of the monotonic clock.
        """
        if self._failed or len(self._stages) >= _MOST_WAITING // 5:
            self.dropped += 1
            return
        self._stages.append((parent, lengths, begins, pid, role))
        if self._thread is None:
            self._start()

    def adopt_file(self, fd: int, nbytes: int, pid: int, role: str) -> None:
        """Take spans that a child collected into a file in memory, one a line. Never blocks: the thread reads it.

        Args:
            fd: Closed when it was read, or if there are too many.
        """
        if self._failed or self._closing or len(self._files) >= _MOST_FILES or not 0 < nbytes <= _MOST_FILE_BYTES:
            os.close(fd)
            self.dropped += 1
            return
        self._files.append((fd, nbytes, pid, role))
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closing and not sys.is_finalizing():
                # A daemon: a disk that hangs must not keep the process from ending.
                self._thread = threading.Thread(target=self._run, args=(self._pid,), name="trims-trace", daemon=True)
                self._thread.start()

    def flush(self, timeout_s: float = _LAST_S) -> bool:
        """Wait until what was taken so far is written. Return False if that takes longer, or failed."""
        if self._thread is None:
            return not self._failed
        self._written.clear()
        self._wake.set()
        return self._written.wait(timeout_s) and not self._failed

    def close(self) -> None:
        """Write what is left, for at most a moment, and take nothing more. Idempotent."""
        self._closing = True
        self.flush()
        self._failed = True
        self._wake.set()

    def _run(self, pid: int) -> None:
        while os.getpid() == pid:
            self._wake.wait(_EVERY_S)
            asked = self._wake.is_set()
            self._wake.clear()
            try:
                self._write_batch()
            except OSError as error:
                self._fail(error)
            if asked:
                self._written.set()
            if self._failed:
                break
        while self._files:
            os.close(self._files.popleft()[0])
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _fail(self, error: OSError) -> None:
        self._failed = True
        self.dropped += len(self._waiting)
        self._waiting.clear()
        log.warning("no spans are recorded any more: %s cannot be written: %s", self.folder, error.strerror)

    def _write_batch(self) -> None:
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]  # others append meanwhile
        open_now = list(self._open.values())
        still_open = [each for each in open_now if each.context.span_id not in self._open_written]
        counters = [self._counters.popleft() for _ in range(len(self._counters))]
        adopted = [self._adopted.popleft() for _ in range(len(self._adopted))]
        stages = _of_stages([self._stages.popleft() for _ in range(len(self._stages))])
        files = len(self._files)
        if not (batch or still_open or counters or adopted or stages or files):
            return
        if self._descriptor < 0:
            self._descriptor = self._opened()
        for pid, role, rows in adopted:
            _write(self._descriptor, {"of": [pid, role], "spans": rows})
        for (pid, role), texts in stages.items():
            _write_text(self._descriptor, f'{{"of":{_text([pid, role])},"spans":[{",".join(texts)}]}}')
        for _ in range(files):
            self._copy(*self._files.popleft())
        self._open_written = {each.context.span_id for each in open_now}
        more: dict[str, Any] = {}
        if still_open:
            more["open"] = [row_of(each) for each in still_open]
        if counters:
            more["counters"] = counters
        if self.dropped:
            more["dropped"] = self.dropped
        _write_text(
            self._descriptor,
            f'{{"spans":[{",".join(map(_row_text, batch))}]{"," + _text(more)[1:-1] if more else ""}}}',
        )
        if os.fstat(self._descriptor).st_size >= FILE_BYTES:
            os.close(self._descriptor)
            self._descriptor = -1
            prune(self.folder, MOST_BYTES)

    def _copy(self, fd: int, nbytes: int, pid: int, role: str) -> None:
        """Write the spans of a child's file; count what in it is no span."""
        try:
            fcntl.fcntl(fd, fcntl.F_GET_SEALS)  # fails for all but files in memory: others may block
            lines = os.pread(fd, nbytes, 0).splitlines()
        except OSError:
            self.dropped += 1
            return
        finally:
            os.close(fd)
        for begin in range(0, len(lines), _AT_ONCE):
            some = lines[begin : begin + _AT_ONCE]
            rows = [row for row in map(_row_in, some) if row is not None]
            self.dropped += len(some) - len(rows)
            if rows:
                _write(self._descriptor, {"of": [pid, role], "spans": rows})

    def _opened(self) -> int:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        unix_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        path = os.path.join(self.folder, f"{unix_ns}-{self._pid}{SUFFIX}")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL | os.O_CLOEXEC, 0o600)
        header = {
            "trims": VERSION, "pid": self._pid, "role": self.role, "unix_ns": unix_ns, "monotonic_ns": monotonic_ns,
            "boot": _boot_id(),
        }  # fmt: skip
        try:
            _write(descriptor, header)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


def _of_stages(taken: Iterable[tuple[SpanContext, object, object, int, str]]) -> dict[tuple[int, str], list[str]]:
    """Return stages as rows by their process; what is none is left out."""
    by_process: dict[tuple[int, str], list[str]] = {}
    for parent, lengths, begins, pid, role in taken:
        if not isinstance(lengths, dict) or not isinstance(begins, list):
            continue
        for (name, seconds), begin in zip(lengths.items(), begins, strict=False):
            if type(begin) is not int or not 0 <= begin < _MOST_NS or not isinstance(seconds, float):
                continue
            if 0 <= seconds < _LONGEST_S:
                named, end = _name(str(name).removesuffix("_s")), begin + int(seconds * 1e9)
                by_process.setdefault((pid, role), []).append(
                    f'["{parent.trace_id}","{new_id()}","{parent.span_id}",{named},{_MODEL},{begin},{end},{pid},{{}}]'
                )
    return by_process


def is_row(row: object) -> bool:
    """Return whether something is a span as it stands in a file."""
    if not isinstance(row, list) or len(row) != len(_FIELDS):
        return False
    if not all(
        isinstance(value, kind) and not isinstance(value, bool) for value, kind in zip(row, _FIELDS, strict=True)
    ):
        return False
    return 1 <= row[4] <= len(Level) and all(0 <= each < 1 << 63 for each in row[5:8])


def _row_in(line: bytes) -> list[Any] | None:
    """Return the span in a line; None if it holds something else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if is_row(found) else None


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)


def _row_text(row: Ended) -> str:
    """Return a span as it stands in a file, as JSON."""
    (trace_id, span_id, _), parent_id, name, level, start_ns, end_ns, thread, attributes = row
    return (
        f'["{trace_id}","{span_id}","{parent_id}",{_name(name)},{int(level)},{start_ns},{end_ns},{thread},'
        f"{_text(attributes) if attributes else '{}'}]"
    )


@lru_cache(1024)
def _name(name: str) -> str:
    return json.dumps(name)


def _write(descriptor: int, message: dict[str, Any]) -> None:
    _write_text(descriptor, _text(message))


def _write_text(descriptor: int, text: str) -> None:
    data = memoryview(text.encode() + b"\n")
    while data:
        data = data[os.write(descriptor, data) :]


def _boot_id() -> str:
    """Return what differs after each start of the machine: monotonic clocks of two starts cannot be compared."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def prune(folder: Path | str, most_bytes: int, running: Iterable[int] = ()) -> int:
    """Remove the oldest files until those that are left have at most so many bytes. Return how many were removed.

    Args:
        running: Processes whose files stay.
    """
    files = []
    for path in Path(folder).glob(f"*{SUFFIX}"):
        try:
            files.append((path.stat().st_mtime_ns, path.stat().st_size, path))
        except OSError:
            continue
    total, removed, kept = sum(size for _, size, _ in files), 0, set(running)
    for _, size, path in sorted(files):
        if total <= most_bytes:
            break
        if int(path.stem.rpartition("-")[2]) in kept:
            continue
        try:
            os.unlink(path)
        except OSError:
            continue
        total, removed = total - size, removed + 1
    return removed
