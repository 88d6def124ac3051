"""ONNX Runtime's profiling around one run.

Profiling is a matter of a whole session and cannot be begun twice in it. So a traced request has a session of its own,
over the same weights and with the same options, which has run once before; the other requests' session knows nothing of
it. ONNX Runtime writes its profile to a file: in a private folder, which is removed as soon as the file is open, so
nothing stays if this process is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any, Protocol

from trims.core.errors import PredictorError
from trims.trace.levels import Level
from trims_predictors.frameworks.profile_event import KERNEL, OPERATOR, RUN, Event, Profile, nbytes_of
from trims_predictors.frameworks.profiling import offset_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims_predictors.api import Arrays


# ONNX Runtime's profile of a session as events of its last run.
#
# Source: https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html. Entries have no ids across
# threads. A node has its index in the graph, and entries stand in the order in which what they measure ended: those
# between the ends of two runs belong to the second one.

_RUN = "model_run"
_SUFFIX = "_kernel_time"


def profile_of(text: str, start_ns: int, *, clock_error_ns: int = 0) -> Profile:
    """Return the profile of a session's last run.

    Args:
        start_ns: When it began to, on the clock of `time.monotonic_ns`: entries count from there.

    Raises PredictorError if it is no profile, or has no run.
    """
    run, unread = _last_run(_entries(text))
    events: list[Event] = []
    nodes: dict[str, int] = {}
    for entry in run:
        try:
            event = _event(entry, len(events) + 1, start_ns, nodes)
        except (KeyError, TypeError, ValueError):
            unread += 1
            continue
        if event is not None:
            events.append(event)
    has_kernels = any(each.kind == KERNEL for each in events)
    return Profile(
        "onnxruntime", tuple(events), Level.HARDWARE if has_kernels else Level.FRAMEWORK,
        "" if has_kernels else "ONNX Runtime's profile has nodes of the graph only", unread, clock_error_ns,
    )  # fmt: skip


def _entries(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise PredictorError(f"ONNX Runtime's profile is cut off or garbled: {error}") from error
    if not isinstance(found, list):
        raise PredictorError(f"ONNX Runtime's profile is no list of entries but a {type(found).__name__}")
    return found


def _last_run(entries: list[Any]) -> tuple[list[dict[str, Any]], int]:
    runs: list[list[dict[str, Any]]] = [[]]
    unread = 0
    for entry in entries:
        if not isinstance(entry, dict):
            unread += 1
        elif entry.get("cat") == "Session" and entry.get("name") == _RUN:
            runs.append([])
        elif entry.get("cat") in ("Node", "Kernel"):
            runs[-1].append(entry)
    if len(runs) == 1:
        raise PredictorError("ONNX Runtime's profile has no run that ended")
    # What device profilers add at the end comes after the run.
    return runs[-2] + [each for each in runs[-1] if each["cat"] == "Kernel"], unread


def _event(entry: dict[str, Any], own: int, start_ns: int, nodes: dict[str, int]) -> Event | None:
    """Return the event of an entry; None for one that measures nothing of its own. Raises for what is incomplete."""
    name, arguments = str(entry["name"]), dict(entry.get("args", {}))
    begin_ns = start_ns + round(float(entry["ts"]) * 1000)
    end_ns, thread = begin_ns + round(float(entry["dur"]) * 1000), int(entry.get("tid", 0))
    if end_ns < begin_ns:
        raise ValueError("it ends before it begins")
    if entry["cat"] == "Kernel":
        parent = nodes.get(str(arguments.get("parent_name", "")).removesuffix(_SUFFIX), RUN)
        known = {key: value for key, value in arguments.items() if isinstance(value, (str, int, float))}
        return Event(own, parent, KERNEL, name, Level.HARDWARE, begin_ns, end_ns, thread, parent != RUN, known)
    if not name.endswith(_SUFFIX):
        return None
    title = name.removesuffix(_SUFFIX)
    nodes[title] = own
    return Event(
        own, RUN, OPERATOR, title, Level.FRAMEWORK, begin_ns, end_ns, thread, "node_index" in arguments,
        dict(_attributes(arguments)),
    )  # fmt: skip


def _attributes(arguments: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "type", str(arguments["op_name"])
    if "node_index" in arguments:
        yield "index", int(arguments["node_index"])
    if "provider" in arguments:
        yield "provider", str(arguments["provider"])
    types = [pair for each in arguments.get("input_type_shape", ()) for pair in each.items()]
    shapes, dtypes = [shape for _, shape in types], [str(dtype) for dtype, _ in types]
    if shapes:
        yield "input_shapes", shapes
        found = nbytes_of(shapes, dtypes)
        if found is not None:
            yield "input_bytes", found
    if "output_size" in arguments:
        yield "output_bytes", int(arguments["output_size"])


#: Bytes of a profile, at most: 10,000 nodes have some 10 MB.
_MOST_BYTES = 64 << 20


class _Host(Protocol):
    """The predictor."""

    def profiling_session(self, prefix: str) -> Any:
        """Return a session like its own that writes its profile to a file whose name begins so."""

    def exchange_session(self, session: Any) -> Any:
        """Run with another session from now on; return the one before."""

    def predict(self, inputs: Arrays) -> Arrays:
        """Run."""


class OnnxProfiler:
    """See `Profiler`.

    Args:
        inner: Returns the session that runs, for one that has others inside.
    """

    def __init__(self, host: _Host, inner: Callable[[Any], Any]) -> None:
        self._host = host
        self._inner = inner
        self._before: Any = None
        self._session: Any = None
        self._files: list[int] = []
        self._offset_ns = 0

    def start(self, level: Level, inputs: Arrays) -> None:
        """See `Profiler`. Its session is made, and runs once."""
        del level
        folder = tempfile.mkdtemp(prefix="trims-profile-")
        try:
            self._session = self._host.profiling_session(os.path.join(folder, "run"))
            self._before = self._host.exchange_session(self._session)
            self._host.predict(inputs)
            self._files = [os.open(each.path, os.O_RDONLY | os.O_CLOEXEC) for each in _in_order(folder)]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._offset_ns = offset_ns()

    def stop(self) -> Profile:
        """See `Profiler`."""
        try:
            self._host.exchange_session(self._before)
            ran = self._inner(self._session)
            start_ns = ran.get_profiling_start_time_ns()
            ran.end_profiling()
            moved = abs(offset_ns() - self._offset_ns)
            text = self._text(is_inner=ran is not self._session)
        finally:
            self._close()
        return profile_of(text, start_ns + self._offset_ns, clock_error_ns=moved)

    def abandon(self) -> None:
        """See `Profiler`."""
        if self._before is not None:
            self._host.exchange_session(self._before)
        self._close()

    def _text(self, *, is_inner: bool) -> str:
        """Return the profile: sessions write one file each, the inner one that with the later name."""
        if not self._files:
            raise PredictorError("ONNX Runtime wrote no profile")
        fd = self._files[-1] if is_inner else self._files[0]
        nbytes = os.fstat(fd).st_size
        if nbytes > _MOST_BYTES:
            raise PredictorError(f"ONNX Runtime's profile has {nbytes:,} bytes; {_MOST_BYTES:,} are the most")
        with open(fd, "rb", closefd=False) as file:
            return file.read().decode(errors="replace")

    def _close(self) -> None:
        self._session = None
        while self._files:
            os.close(self._files.pop())


def _in_order(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return sorted(found, key=lambda each: each.name)
