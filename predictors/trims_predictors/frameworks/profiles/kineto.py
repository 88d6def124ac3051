"""Kineto's activities of one run (PyTorch) as events, joined by ids.

Kineto has two kinds of ids. An operator has an *External id*, which calls of the runtime and kernels repeat that were
made in it. A call and the kernel that it launched have the same *correlation*, which CUPTI gives. They are counted
independently: an operator and a kernel with one number have nothing to do with each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trims.trace.levels import Level
from trims_predictors.frameworks.profiles.event import CALL, KERNEL, LAYER, OPERATOR, RUN, Event, Profile, nbytes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Beginning of the names of ranges that stand for layers and for the run; the layer's number follows.
MARK = "trims#"
_OPERATORS = ("cpu_op", "user_annotation")
_CALLS = ("cuda_runtime", "cuda_driver", "privateuse1_runtime", "xpu_runtime")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "concurrent_kernel")


@dataclass(frozen=True, slots=True)
class Activity:
    """One entry of Kineto's trace.

    Attributes:
        category: Its `cat`.
        name: Of the operator, function or kernel.
        start_ns: On Kineto's clock, which counts from 1970.
        thread: Of the processor; for kernels the stream.
        external: Its External id: of the operator itself, or of the one that it was made in; 0 for none.
        correlation: CUPTI's id of a call and of what it launched; 0 for none.
        parent: External id of the operator that this operator was called in; 0 for none.
        nbytes: That were copied; 0 for what copies nothing.
        device: Number of the device.
    """

    category: str
    name: str
    start_ns: int
    end_ns: int
    thread: int = 0
    external: int = 0
    correlation: int = 0
    parent: int = 0
    shapes: tuple[Any, ...] = ()
    dtypes: tuple[str, ...] = ()
    nbytes: int = 0
    device: int = 0


@dataclass(frozen=True, slots=True)
class Layer:
    """A module that ran within a range of the name `trims#` and its number."""

    name: str
    type: str
    shapes: list[list[int]] = field(default_factory=list)


def profile_of(
    activities: Iterable[Activity],
    layers: Mapping[int, Layer],
    offset_ns: int,
    *,
    clock_error_ns: int = 0,
    has_device: bool = False,
) -> Profile:
    """Return the profile of a run.

    Args:
        layers: By the number in the name of their range; `RUN` stands for the run and needs none.
        offset_ns: What must be added to Kineto's times for those of `time.monotonic_ns`.
        clock_error_ns: See `Profile`.
        has_device: Kineto has watched a device.
    """
    return _Joining(list(activities), layers, offset_ns).profile(clock_error_ns, has_device=has_device)


class _Joining:
    def __init__(self, activities: list[Activity], layers: Mapping[int, Layer], offset_ns: int) -> None:
        self._layers = layers
        self._offset_ns = offset_ns
        self._operators = {each.external: each for each in activities if _is_operator(each)}
        self._calls = {each.correlation: each for each in activities if each.category in _CALLS and each.correlation}
        self._activities = [each for each in activities if not _is_operator(each)]
        #: Numbers of events by what they are made from.
        self._numbers: dict[tuple[str, int], int] = {}

    def profile(self, clock_error_ns: int, *, has_device: bool) -> Profile:
        events, unread = [], 0
        for operator in self._operators.values():
            if operator.end_ns < operator.start_ns:
                unread += 1
            elif _number_of(operator) != RUN:
                events.append(self._operator(operator))
        for each in self._activities:
            if each.category not in _CALLS + _DEVICE:
                continue
            if each.end_ns < each.start_ns:
                unread += 1
            else:
                events.append(self._call(each) if each.category in _CALLS else self._kernel(each))
        deepest = Level.HARDWARE if has_device else Level.LIBRARY
        why = "" if has_device else "torch uses no GPU here"
        return Profile("kineto", tuple(events), deepest, why, unread, clock_error_ns)

    def _id(self, kind: str, number: int) -> int:
        return self._numbers.setdefault((kind, number), len(self._numbers) + 1)

    def _event(self, each: Activity, own: int, place: tuple[int, bool], kind: str, **more: Any) -> Event:
        level = {LAYER: Level.FRAMEWORK, OPERATOR: Level.FRAMEWORK, CALL: Level.LIBRARY, KERNEL: Level.HARDWARE}[kind]
        attributes = {key: value for key, value in more.items() if value not in (None, [], "", 0)}
        return Event(
            own, place[0], kind, attributes.pop("title", each.name), attributes.pop("level", level),
            each.start_ns + self._offset_ns, each.end_ns + self._offset_ns, each.thread, place[1], attributes,
        )  # fmt: skip

    def _operator(self, each: Activity) -> Event:
        own, place = self._id("op", each.external), self._place(each.parent)
        number = _number_of(each)
        if number is not None:
            layer = self._layers.get(number, Layer(each.name, "module"))
            return self._event(each, own, place, LAYER, title=layer.name, type=layer.type, input_shapes=layer.shapes)
        parent = self._operators.get(each.parent)
        inside = parent is not None and _number_of(parent) is None
        return self._event(
            each, own, place, OPERATOR, level=Level.LIBRARY if inside else Level.FRAMEWORK, type=each.name,
            input_shapes=[list(shape) for shape in each.shapes if shape],
            input_bytes=nbytes_of(each.shapes, each.dtypes),
        )  # fmt: skip

    def _call(self, each: Activity) -> Event:
        own = self._id("call", each.correlation) if each.correlation else self._id("anonymous", len(self._numbers))
        return self._event(each, own, self._place(each.external), CALL, type=each.name)

    def _kernel(self, each: Activity) -> Event:
        """A part of the operator that its launch was made in, or of the one that it names itself."""
        call = self._calls.get(each.correlation)
        own = self._id("anonymous", len(self._numbers))
        if call is not None:
            place = (self._id("call", call.correlation), self._place(call.external)[1])
        else:
            place = self._place(each.external)
        return self._event(
            each, own, place, KERNEL, type=each.category, copied_bytes=each.nbytes, stream=each.thread,
            device=each.device or None,
        )  # fmt: skip

    def _place(self, external: int) -> tuple[int, bool]:
        """Return the event of an operator, and whether the run is known by ids to be what it belongs to."""
        operator = self._operators.get(external)
        if operator is None:
            return RUN, False
        return RUN if _number_of(operator) == RUN else self._id("op", external), self._is_of_run(operator)

    def _is_of_run(self, operator: Activity) -> bool:
        seen: set[int] = set()
        found: Activity | None = operator
        while found is not None and found.external not in seen:
            if _number_of(found) is not None:
                return True
            seen.add(found.external)
            found = self._operators.get(found.parent)
        return False


def _is_operator(each: Activity) -> bool:
    return each.category in _OPERATORS and each.external > 0


def _number_of(each: Activity) -> int | None:
    """Return the number in the name of a range of ours; None for an operator."""
    number = each.name.removeprefix(MARK)
    return int(number) if each.name.startswith(MARK) and number.isdecimal() else None
