"""MXNet's profile of one run as events.

MXNet writes Chrome's events: pairs `B` and `E` of an operator on a device, and the same once more as `b` and `e`;
calls of its C interface as `b` and `e` only. Times are microseconds since 1970. Nothing in it has an id: an operator is
known by its place in the order of the graph's nodes, if their types agree all the way.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import PredictorError
from trims.trace.levels import Level
from trims_predictors.frameworks.profile_event import CALL, OPERATOR, RUN, Event, Profile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OPERATOR, _CALL = "operator", "MXNET_C_API"


class Node(NamedTuple):
    """A node of the graph: its name and its operator."""

    name: str
    type: str


def nodes_of(symbol: str) -> list[Node]:
    """Return the operators of a graph, in the order in which they run. Raises PredictorError if it is no graph."""
    try:
        found = json.loads(symbol)["nodes"]
        return [Node(str(each["name"]), str(each["op"])) for each in found if each["op"] != "null"]
    except (ValueError, KeyError, TypeError) as error:
        raise PredictorError(f"MXNet's symbol cannot be read: {error!r}") from error


def profile_of(text: str, nodes: Sequence[Node], offset_ns: int, *, clock_error_ns: int = 0) -> Profile:
    """Return the profile of a run.

    Args:
        nodes: Nodes of the graph that ran, in order; empty if they are not known.
        offset_ns: What must be added to MXNet's times for those of `time.monotonic_ns`.

    Raises PredictorError if it is no profile.
    """
    try:
        # MXNet begins each dump but the first one of a process with a comma.
        entries = json.loads(re.sub(r"\[\s*,", "[", text, count=1))["traceEvents"]
    except (ValueError, KeyError, TypeError) as error:
        raise PredictorError(f"MXNet's profile is cut off or garbled: {error!r}") from error
    steps, unread = _paired(entries)
    operators = _once([each for each in steps if each.category == _OPERATOR])
    matched = _matched(operators, nodes)
    events = []
    for index, step in enumerate([*operators, *(each for each in steps if each.category == _CALL)]):
        is_operator = step.category == _OPERATOR and (not matched or index in matched)
        kind, level = (OPERATOR, Level.FRAMEWORK) if is_operator else (CALL, Level.LIBRARY)
        name = matched[index].name if index in matched else step.name
        begin_ns, end_ns = step.begin_us * 1000 + offset_ns, step.end_us * 1000 + offset_ns
        events.append(Event(index + 1, RUN, kind, name, level, begin_ns, end_ns, attributes={"type": step.name}))
    why = "MXNet's profiler has operators and calls of its C interface only"
    return Profile("mxnet", tuple(events), Level.LIBRARY, why, unread, clock_error_ns)


class _Step(NamedTuple):
    category: str
    name: str
    begin_us: int
    end_us: int


def _once(steps: list[_Step]) -> list[_Step]:
    """Return operators in the order in which they began. MXNet measures most of them twice, once inside the other."""
    found: list[_Step] = []
    last: dict[str, _Step] = {}
    for each in sorted(steps, key=lambda each: (each.begin_us, -each.end_us)):
        before = last.get(each.name)
        if before is None or each.end_us > before.end_us:
            found.append(each)
            last[each.name] = each
    return found


def _matched(operators: Sequence[_Step], nodes: Sequence[Node]) -> dict[int, Node]:
    """Return the node of each operator by its place; none if they do not all agree.

    An operator between two nodes, such as a `Reorder` of oneDNN, is a call of a library and no node.
    """
    found: dict[int, Node] = {}
    waiting = iter(nodes)
    node = next(waiting, None)
    for index, operator in enumerate(operators):
        if node is not None and operator.name == node.type:
            found[index] = node
            node = next(waiting, None)
    return found if node is None else {}


def _paired(entries: object) -> tuple[list[_Step], int]:
    """Return steps with both ends, and how many ends have no other one."""
    if not isinstance(entries, list):
        raise PredictorError("MXNet's profile has no list of events")
    steps: list[_Step] = []
    open_: dict[tuple[str, str, int], list[int]] = {}
    unread = 0
    for category, name, phase, at_us, thread in _ends(entries):
        begun = open_.setdefault((category, name, thread), [])
        if phase in "Bb":
            begun.append(at_us)
        elif begun and begun[-1] <= at_us:
            steps.append(_Step(category, name, begun.pop(), at_us))
        else:
            unread += 1
    return steps, unread + sum(map(len, open_.values()))


def _ends(entries: list[Any]) -> Iterator[tuple[str, str, str, int, int]]:
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        category, phase = entry.get("cat"), entry.get("ph")
        if (category, phase) in ((_OPERATOR, "B"), (_OPERATOR, "E"), (_CALL, "b"), (_CALL, "e")):
            yield str(category), str(entry["name"]), str(phase), int(entry["ts"]), int(entry.get("tid", 0))
