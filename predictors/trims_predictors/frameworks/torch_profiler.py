"""Kineto around one run of PyTorch: modules by hooks, operators by the profiler, kernels where there is a GPU.

Each module that runs has a range of its own in Kineto's trace, whose name has a number of ours; what Kineto says was
called in that range is a part of the module. Kineto's clock counts from 1970. Only what runs in the thread of the
request is seen, not what a model's own threads do.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity

from trims.core.errors import PredictorError
from trims.trace.levels import Level
from trims_predictors.frameworks.profiles.event import RUN
from trims_predictors.frameworks.profiles.kineto import MARK, Activity, Layer, profile_of
from trims_predictors.frameworks.profiling import offset_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims_predictors.api import Arrays
    from trims_predictors.frameworks.profiles.event import Profile

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
