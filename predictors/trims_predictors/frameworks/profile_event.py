"""Events of a profile: layers, operators, calls and kernels, each with the event that it is a part of, by id."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trims.trace.profiles import CALL, KERNEL, LAYER, OPERATOR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trims.trace.levels import Level

#: Parent of events that are parts of the run itself.
RUN = 0
#: Spans of one profile, at most; a BERT has some 2,000 operators, with those inside of others.
MOST_SPANS = 10_000
#: Bytes of an element, by the names that torch and ONNX Runtime have for its type.
_ITEM_BYTES = {
    "float": 4, "double": 8, "half": 2, "c10::half": 2, "c10::bfloat16": 2, "float16": 2, "bfloat16": 2, "int": 4,
    "long": 8, "long int": 8, "int32": 4, "int64": 8, "int8": 1, "uint8": 1, "unsigned char": 1, "signed char": 1,
    "bool": 1, "short": 2, "int16": 2,
}  # fmt: skip


__all__ = ["CALL", "KERNEL", "LAYER", "MOST_SPANS", "OPERATOR", "RUN", "Event", "Profile", "nbytes_of", "within"]


@dataclass(frozen=True, slots=True)
class Event:
    """A step of a run, as a profiler saw it.

    Attributes:
        id: Number from 1 on; no other event of the profile has it.
        parent: Id of the event that it is a part of; `RUN` for the run itself.
        kind: `LAYER`, `OPERATOR`, `CALL` or `KERNEL`.
        name: Name of the layer, operator, function or kernel.
        start_ns: Start on the clock of `time.monotonic_ns`.
        thread: Thread of the processor, or stream of the device, as the profiler names it.
        is_joined: Whether its parent is known by an id; if not, it only ran meanwhile.
    """

    id: int
    parent: int
    kind: str
    name: str
    level: Level
    start_ns: int
    end_ns: int
    thread: int = 0
    is_joined: bool = True
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Profile:
    """Record of one run by a profiler.

    Attributes:
        by: The profiler's name.
        deepest: The deepest level that it can show of such a run.
        why_not_deeper: What it would need to show more.
        unread: Entries of the profile that could not be read.
        clock_error_ns: How far the profiler's clock and that of spans moved apart meanwhile.
    """

    by: str
    events: tuple[Event, ...]
    deepest: Level
    why_not_deeper: str = ""
    unread: int = 0
    clock_error_ns: int = 0

    @property
    def accounted(self) -> float:
        """Return the part of the time of operators and kernels that is joined to a layer or the run by ids, 0 to 1.

        Operators inside of others, and layers, are not counted: their time is counted already.
        """
        known = {each.id: each for each in self.events}
        counted = [each for each in self.events if _is_outermost(each, known)]
        total = sum(each.end_ns - each.start_ns for each in counted)
        return sum(each.end_ns - each.start_ns for each in counted if each.is_joined) / total if total else 1.0


def _is_outermost(event: Event, known: dict[int, Event]) -> bool:
    if event.kind == KERNEL:
        return True
    parent = known.get(event.parent)
    return event.kind == OPERATOR and (parent is None or parent.kind != OPERATOR)


def within(events: Iterable[Event], level: Level, most: int = MOST_SPANS) -> tuple[list[Event], int]:
    """Return the events down to a level, parents before their parts, and how many of them were cut.

    Args:
        events: Events of a profile. What is a part of a deeper event than the level becomes a part of that one's
            parent.
        level: The deepest that is wanted.
        most: Events that are kept: the outer ones before the inner ones.
    """
    parts: defaultdict[int, list[Event]] = defaultdict(list)
    wanted = 0
    for each in sorted(events, key=lambda each: each.start_ns):
        parts[each.parent].append(each)
        wanted += each.level <= level
    kept: list[Event] = []
    waiting, seen = deque([(RUN, RUN)]), {RUN}
    while waiting and len(kept) < most:
        inside, outer = waiting.popleft()
        for each in parts.get(inside, ()):
            if each.id in seen:
                continue
            seen.add(each.id)
            if each.level > level:
                waiting.append((each.id, outer))
            elif len(kept) < most:
                kept.append(replace(each, parent=outer))
                waiting.append((each.id, each.id))
    return kept, wanted - len(kept)


def nbytes_of(shapes: Iterable[object], dtypes: Iterable[str]) -> int | None:
    """Return the bytes of tensors of these shapes and types; None if the size of one is not known."""
    total = 0
    for shape, dtype in zip(shapes, dtypes, strict=False):
        size = _ITEM_BYTES.get(dtype.lower())
        if not isinstance(shape, (list, tuple)) or not all(isinstance(each, int) for each in shape):
            return None
        if size is None:
            if shape:
                return None
            continue  # a number, or no tensor at all
        total += size * math.prod(shape) if shape else 0
    return total or None
