"""Kineto around one run of PyTorch: modules by hooks, operators by the profiler, kernels where there is a GPU.

Each module that runs has a range of its own in Kineto's trace, whose name has a number of ours; what Kineto says was
called in that range is a part of the module. Kineto's clock counts from 1970. Only what runs in the thread of the
request is seen, not what a model's own threads do.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity

from trims.core.errors import PredictorError
from trims.trace.levels import Level
from trims_predictors.frameworks.profile_event import CALL, KERNEL, LAYER, OPERATOR, RUN, Event, Profile, nbytes_of
from trims_predictors.frameworks.profiling import offset_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trims_predictors.api import Arrays


# Kineto's activities of one run (PyTorch) as events, joined by ids.
#
# Kineto has two kinds of ids. An operator has an *External id*, which calls of the runtime and kernels repeat that were
# made in it. A call and the kernel that it launched have the same *correlation*, which CUPTI gives. They are counted
# independently: an operator and a kernel with one number have nothing to do with each other.

#: Beginning of the names of ranges that stand for layers and for the run; the layer's number follows.
MARK = "trims#"
_OPERATORS = ("cpu_op", "user_annotation")
_CALLS = ("cuda_runtime", "cuda_driver", "privateuse1_runtime", "xpu_runtime")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "concurrent_kernel")


@dataclass(frozen=True, slots=True)
class Activity:
    """One entry of Kineto's trace.

    Attributes:
        category: Kineto's `cat`.
        name: Name of the operator, function or kernel.
        start_ns: Start on Kineto's clock, which counts from 1970.
        thread: Thread of the processor; for kernels the stream.
        external: External id of the operator itself, or of the one that it was made in; 0 for none.
        correlation: CUPTI's id of a call and of what it launched; 0 for none.
        parent: External id of the operator that this operator was called in; 0 for none.
        nbytes: Bytes that were copied; 0 for what copies nothing.
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
        layers: Layers by the number in the name of their range; `RUN` stands for the run and needs none.
        offset_ns: What must be added to Kineto's times for those of `time.monotonic_ns`.
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


_DEVICES = ("cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset", "concurrent_kernel")


class TorchProfiler:
    """See `Profiler`. Kineto has one profile at a time in a process: `start` fails if model code has one."""

    def __init__(self) -> None:
        self._profile: Any = None
        self._whole: Any = None
        self._ranges = _Ranges()
        self._offset_ns = 0
        self._has_device = False

    def start(self, level: Level, inputs: Arrays) -> None:
        """See `Profiler`. Devices are watched from the level `library` on."""
        del inputs
        if torch.autograd._profiler_enabled():
            raise PredictorError("the model's own code has a profile of torch that goes on; torch has one at a time")
        self._has_device = level >= Level.LIBRARY and torch.cuda.is_available()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._has_device else [])]
        profile = torch.profiler.profile(activities=activities, record_shapes=True)
        profile.__enter__()
        self._profile = profile
        self._ranges.begin()
        self._offset_ns = offset_ns()
        self._whole = torch.profiler.record_function(f"{MARK}{RUN}")
        self._whole.__enter__()

    def stop(self) -> Profile:
        """See `Profiler`."""
        self._end()
        moved = abs(offset_ns() - self._offset_ns)
        results = self._profile.profiler.kineto_results
        activities = list(_activities(results))
        return profile_of(
            activities, self._ranges.layers, self._offset_ns, clock_error_ns=moved, has_device=self._has_device
        )

    def abandon(self) -> None:
        """See `Profiler`."""
        self._ranges.end()
        if self._profile is not None:
            self._profile.__exit__(None, None, None)

    def _end(self) -> None:
        if self._has_device and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._ranges.end()
        try:
            self._whole.__exit__(None, None, None)
        finally:
            self._profile.__exit__(None, None, None)


class _Ranges:
    """Ranges of the modules that run in the thread of the request."""

    def __init__(self) -> None:
        self.layers: dict[int, Layer] = {}
        self._names: dict[int, str] = {}
        self._open: list[tuple[int, Any]] = []
        self._hooks: list[Any] = []
        self._thread = 0

    def begin(self) -> None:
        self._thread = threading.get_ident()
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)

    def _enter(self, module: torch.nn.Module, given: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if id(module) not in self._names:  # the outermost module, or one that is no part of it
            self._names.update({id(each): name for name, each in module.named_modules() if name})
            self._names.setdefault(id(module), type(module).__name__)
        number = len(self.layers) + 1
        shapes = [list(each.shape) for each in given if isinstance(each, torch.Tensor)]
        self.layers[number] = Layer(self._names[id(module)], type(module).__name__, shapes)
        entered = torch.profiler.record_function(f"{MARK}{number}")
        entered.__enter__()
        self._open.append((id(module), entered))

    def _leave(self, module: torch.nn.Module, given: Any, made: Any) -> None:
        del given, made
        if threading.get_ident() == self._thread and self._open and self._open[-1][0] == id(module):
            self._open.pop()[1].__exit__(None, None, None)


def _activities(results: Any) -> Iterator[Activity]:
    """Read what Kineto has in memory: no file is written."""
    parents = dict(_parents(results.experimental_event_tree()))
    for each in results.events():
        category, is_device = str(each.activity_type()), str(each.activity_type()) in _DEVICES
        own = each.correlation_id()
        yield Activity(
            category, each.name(), each.start_ns(), each.start_ns() + each.duration_ns(),
            each.device_resource_id(), each.linked_correlation_id() if is_device else own, own if is_device else 0,
            0 if is_device else parents.get(own, 0), tuple(each.shapes()), tuple(each.dtypes()),
            each.nbytes() if category == "gpu_memcpy" else 0, max(0, each.device_index()) if is_device else 0,
        )  # fmt: skip


def _parents(tree: list[Any]) -> Iterator[tuple[int, int]]:
    """External ids of operators, with those of the operators that they were called in."""
    waiting = [(each, 0) for each in tree]
    while waiting:
        node, parent = waiting.pop()
        is_operator = str(node.tag).endswith("TorchOp")
        if is_operator:
            yield node.correlation_id, parent
        waiting += [(each, node.correlation_id if is_operator else parent) for each in node.children]
