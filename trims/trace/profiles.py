"""Facts of profiles, which the levels below the model come from, as spans carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.trace.reader import Record, Trace

#: Names of the spans in which a profiler is started, and its profile is read and recorded.
START, READ = "start profiler", "read profile"
#: Attributes of these spans: what went wrong; why a level that was asked for is not there; and counts of spans that
#: were left out because they are too many, of entries that could not be read, and of seconds in ns between clocks.
ERROR, NOT_DEEPER, CUT, UNREAD, CLOCK_ERROR = "error", "not_deeper", "cut", "unread", "clock_error_ns"
#: Attribute of spans of profiles: what they are. And of those whose parent no id names: False.
KIND, JOINED = "kind", "joined"
LAYER, OPERATOR, CALL, KERNEL = "layer", "operator", "call", "kernel"


def shortcomings(trace: Trace) -> list[str]:
    """Return sentences about what the profiles of a trace lack, each once."""
    return list(dict.fromkeys(each for span in trace.spans for each in _of(span)))


def _of(span: Record) -> Iterator[str]:
    if span.name not in (START, READ):
        return
    known = span.attributes
    for key in (ERROR, NOT_DEEPER):
        if known.get(key):
            yield str(known[key])
    if known.get(CUT):
        yield f"{known[CUT]} spans of the profile were left out: they are too many"
    if known.get(UNREAD):
        yield f"{known[UNREAD]} entries of the profile could not be read"
