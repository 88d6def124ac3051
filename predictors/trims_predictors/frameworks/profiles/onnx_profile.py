"""ONNX Runtime's profile of a session as events of its last run.

Source: https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html. Entries have no ids across
threads. A node has its index in the graph, and entries stand in the order in which what they measure ended: those
between the ends of two runs belong to the second one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trims.core.errors import PredictorError
from trims.trace.levels import Level
from trims_predictors.frameworks.profiles.event import KERNEL, OPERATOR, RUN, Event, Profile, nbytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_RUN = "model_run"
_SUFFIX = "_kernel_time"


def profile_of(text: str, start_ns: int, *, clock_error_ns: int = 0) -> Profile:
    """Return the profile of a session's last run.

    Args:
        start_ns: When it began to, on the clock of `time.monotonic_ns`: entries count from there.
        clock_error_ns: See `Profile`.

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
