"""Spans: what took how long, in which process, as part of what. Recorded only if asked for; else one check each.

A program calls `configure` once. Code calls `span` around what it does, and hands `traceparent()` to other processes.
"""

from __future__ import annotations

import os

from trims.trace.context import VARIABLE, SpanContext, current, parse_context
from trims.trace.levels import Level
from trims.trace.span import OFF, AnySpan, Span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from trims.trace.recorder import Collector, Recorder
    from trims.trace.span import Sink

_sink: Sink | None = None
_everything = False
_deepest = int(Level.MODEL)
#: Variables: record everything; where; and how deep.
ALL_VARIABLE, FOLDER_VARIABLE, LEVEL_VARIABLE = "TRIMS_TRACE", "TRIMS_TRACE_DIR", "TRIMS_TRACE_LEVEL"
#: Key of W3C's `tracestate` by which a caller has the endpoint record its request: `1`, or the name of a level.
_KEY, _AS_SET = "trims=", "1"


def configure(folder: Path | str, role: str, *, level: Level = Level.MODEL, everything: bool = False) -> None:
    """Have this process record spans from now on, into a file of its own in a folder.

    Args:
        folder: Made when the first span is written.
        role: What the process is, such as `daemon`.
        level: The deepest that is recorded.
        everything: Record also what belongs to no trace that another process began.
    """
    from trims.trace.recorder import Recorder

    _use(Recorder(folder, role), level, everything=everything)


def collect(level: Level = Level.MODEL) -> Collector:
    """Have this process keep spans of other processes' traces from now on, for its parent to record. Returns them."""
    from trims.trace.recorder import Collector

    collector = Collector()
    _use(collector, level, everything=False)
    return collector


def configure_from_environment(role: str) -> None:
    """Record as the environment says, unless this process does already. Without its variables nothing is recorded.

    `TRIMS_TRACE_DIR` is the folder; `TRIMS_TRACE=1` has everything recorded, by default below the state folder; and
    with `TRACEPARENT` spans of this process are parts of that span. Raises ValueError if `TRIMS_TRACE_LEVEL` is no
    level.
    """
    found = os.environ
    everything = found.get(ALL_VARIABLE, "").lower() in ("1", "yes", "true", "on")
    if _sink is not None or not (everything or found.get(FOLDER_VARIABLE)):
        return
    level = Level.parse(found.get(LEVEL_VARIABLE) or Level.MODEL.name)
    configure(found.get(FOLDER_VARIABLE) or default_folder(), role, level=level, everything=everything)
    context = parse_context(found.get(VARIABLE))
    if context is not None:
        current.set(context)


def default_folder() -> str:
    """Return the folder of traces of a daemon with the default settings."""
    found = os.environ
    base = found.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(found.get("TRIMS_STATE_DIR") or os.path.join(base, "trims"), "trace")


def _use(sink: Sink | None, level: Level = Level.MODEL, *, everything: bool = False) -> None:
    global _sink, _everything, _deepest
    before = _sink
    _sink, _everything, _deepest = sink, everything, int(level)
    if before is not None:
        before.close()


def stop() -> None:
    """Write what is left, for at most a moment, and record nothing from now on."""
    _use(None)


def recorder() -> Recorder | None:
    """Return what writes spans of this process; None while none are written."""
    if _sink is None:
        return None
    from trims.trace.recorder import Recorder

    return _sink if isinstance(_sink, Recorder) else None


def count(name: str, value: float) -> None:
    """Record the value of a counter, where everything is recorded. Sizes are named `..._bytes`."""
    if _sink is not None and _everything:
        _sink.count(name, value)


def is_everything() -> bool:
    """Return whether everything is recorded, with counters."""
    return _sink is not None and _everything


def deepest() -> Level:
    """Return the deepest level that is recorded here: what the caller asks for, else what this process is set to."""
    context = current.get()
    return Level(_deepest if context is None or context.level is None else context.level)


def tracestate(level: Level) -> str:
    """Return the entry of `tracestate` that asks for a request's spans down to a level."""
    return _KEY + (_AS_SET if level <= Level.MODEL else level.name.lower())


def asked_by(state: str) -> tuple[bool, Level | None]:
    """Return whether a `tracestate` asks for spans, and down to which level; None for what the process is set to.

    An entry with a level that there is not asks for nothing.
    """
    for entry in state.replace(" ", "").split(","):
        if entry.startswith(_KEY):
            value = entry.removeprefix(_KEY)
            try:
                return True, None if value == _AS_SET else Level.parse(value)
            except ValueError:
                return False, None
    return False, None


def is_on() -> bool:
    """Return whether some spans of this process are recorded."""
    return _sink is not None


def is_recording() -> bool:
    """Return whether a span that begins here would be recorded."""
    return _sink is not None and (_everything or current.get() is not None)


def records(level: Level) -> bool:
    """Return whether a span of that level that begins here would be recorded."""
    return is_recording() and level <= deepest()


def span(name: str, level: Level = Level.MODEL, parent: SpanContext | None = None, **attributes: Any) -> AnySpan:
    """Begin a span: use it as a context manager, or call its `end`.

    Args:
        level: How deep in the stack. Deeper ones than what is recorded are left out.
        parent: What it is a part of; None for the span in whose block this is called.
    """
    if _sink is None:
        return OFF
    if parent is None:
        parent = current.get()
        if parent is None and not _everything:
            return OFF
    asked = None if parent is None else parent.level
    if level > (_deepest if asked is None else asked):
        return OFF
    return Span(_sink, name, level, parent, attributes)


def record(
    name: str,
    level: Level,
    parent: SpanContext,
    *,
    times_ns: tuple[int, int],
    thread: int,
    attributes: dict[str, Any],
) -> SpanContext | None:
    """Record a span that a profiler has measured (see `Span.measured`); None if this process records nothing."""
    if _sink is None:
        return None
    return Span.measured(_sink, name, level, parent, times_ns=times_ns, thread=thread, attributes=attributes)


def traceparent() -> str | None:
    """Return the context to hand to another process; None if this code belongs to no trace that is recorded."""
    context = current.get() if _sink is not None else None
    return None if context is None else str(context)


class Within:
    """Context manager whose block belongs to a span that goes on elsewhere, or to none."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: SpanContext | None) -> None:
        self._context = context

    def __enter__(self) -> SpanContext | None:
        self._token = current.set(self._context)
        return self._context

    def __exit__(self, *error: object) -> None:
        current.reset(self._token)


def continued(text: object, level: Level | None = None) -> Within:
    """Have spans of the block be parts of the span that another process names by a `traceparent`, if it is one.

    Args:
        level: The deepest that the other process asks for; None for what this one is set to.
    """
    context = parse_context(text)
    return Within(context if context is None or level is None else context._replace(level=int(level)))


def down_to(level: Level) -> Within:
    """Have spans of the block, which belongs to a trace, be recorded down to a level."""
    context = current.get()
    return Within(None if context is None else context._replace(level=int(level)))


def _after_fork() -> None:
    """Give a forked child a file of its own; open spans are its parent's."""
    if _sink is not None:
        _sink.begin_again()


os.register_at_fork(after_in_child=_after_fork)
