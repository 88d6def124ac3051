"""Profiles of single runs: the framework's own profiler around a request, if its caller asks for levels below `model`.

The profiler is started before the run is timed and read after it. Whatever goes wrong with it is said on a span, and
the request is answered as without it.
"""

from __future__ import annotations

import importlib
import itertools
import os
import resource
import sys
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from trims.trace import spans
from trims.trace.levels import Level
from trims.trace.profiles import CLOCK_ERROR, CUT, ERROR, JOINED, KIND, NOT_DEEPER, READ, START, UNREAD
from trims.trace.span import OFF
from trims_predictors.frameworks.profile_event import MOST_SPANS, RUN, within
from trims_predictors.tracebacks import format_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from trims.trace.context import SpanContext
    from trims.trace.span import AnySpan
    from trims_predictors.api import Arrays, Predictor
    from trims_predictors.frameworks.profile_event import Profile


# Samples of a process and its GPUs around a run, as attributes of its span: the level `system`.

_NOTHING: AbstractContextManager[None] = nullcontext()
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def sampled(run: AnySpan) -> AbstractContextManager[None]:
    """Add to a run's span what its process used in the block, if the level `system` is recorded; else do nothing."""
    return _NOTHING if run is OFF or spans.deepest() < Level.SYSTEM else _sampled(run)


@contextmanager
def _sampled(run: AnySpan) -> Iterator[None]:
    before = used()
    try:
        yield
    finally:
        after = used()
        run.set(
            **{f"system.{name}": _difference(value, before[name]) for name, value in after.items() if name in before}
        )
        run.set(**{"system.rss_bytes": rss_bytes()})
        run.set(**gpu_samples())


def _difference(after: float, before: float) -> float:
    return round(after - before, 6)


def used() -> dict[str, float]:
    """Return what this process has used since it began: processor time, page faults, switches, bytes of disks."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found: dict[str, float] = {
        "cpu_s": usage.ru_utime + usage.ru_stime, "minor_faults": usage.ru_minflt, "major_faults": usage.ru_majflt,
        "switches": usage.ru_nvcsw + usage.ru_nivcsw,
    }  # fmt: skip
    return {**found, **_read_bytes()}


def _read_bytes() -> dict[str, float]:
    """Return bytes read by system calls and from disks; nothing where the kernel does not say it."""
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            lines = dict(line.split(": ") for line in file)
    except (OSError, ValueError):
        return {}
    return {"read_call_bytes": int(lines["rchar"]), "read_bytes": int(lines["read_bytes"])}


def rss_bytes() -> int:
    """Return the memory of this process that is resident."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


def gpu_samples() -> dict[str, Any]:
    """Return utilization, and memory that is used, of each GPU by NVML; nothing without the package or a GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - its package is missing, or its library, or the driver: each has its own class
        return {}
    try:
        return dict(_of_gpus(pynvml))
    except pynvml.NVMLError as error:
        return {"system.gpu.error": str(error)}
    finally:
        pynvml.nvmlShutdown()


def _of_gpus(nvml: Any) -> Iterator[tuple[str, int]]:
    for index in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        yield f"system.gpu{index}.used_bytes", int(nvml.nvmlDeviceGetMemoryInfo(device).used)
        yield f"system.gpu{index}.utilization_percent", int(nvml.nvmlDeviceGetUtilizationRates(device).gpu)


#: Frameworks whose profiler sees all that a process does -> module and class of ours for it.
PROFILERS = {
    "torch": ("trims_predictors.frameworks.torch_profiler", "TorchProfiler"),
    "mxnet": ("trims_predictors.frameworks.mxnet_profiler", "MxnetProfiler"),
}
#: Numbers of the profiles of this process that failed.
_failures = itertools.count(1)


class Profiler(Protocol):
    """A framework's profiler, for one run. Its methods may raise anything."""

    def start(self, level: Level, inputs: Arrays) -> None:
        """Watch what runs from now on.

        Args:
            level: The deepest that is wanted.
            inputs: Inputs of the run that comes: what a first run does may be done before, with them.
        """

    def stop(self) -> Profile:
        """Watch no more, and return what was seen since `start`, which has returned."""

    def abandon(self) -> None:
        """Undo what `start` did before it failed. Never raises."""


def profiler_of(predictor: Predictor) -> Profiler | None:
    """Return the profiler for runs of a predictor: its own, else that of a framework here; None for none."""
    make = getattr(predictor, "make_profiler", None)
    if make is not None:
        made: Profiler = make()
        return made
    for module, (ours, name) in PROFILERS.items():
        if module in sys.modules:
            found: Profiler = getattr(importlib.import_module(ours), name)()
            return found
    return None


@contextmanager
def profiled(predictor: Predictor, inputs: Arrays) -> Iterator[Callable[[AnySpan], AbstractContextManager[None]]]:
    """Profile the run in the block; levels below `model` are recorded here.

    The block calls what it is given with the span of the run, which layers and operators become parts of, and runs
    within what that returns.
    """
    level = spans.deepest()
    profiler = _started(predictor, inputs, level)
    run: list[SpanContext] = []

    def watch(predicting: AnySpan) -> AbstractContextManager[None]:
        if predicting.context is not None:
            run.append(predicting.context)
        return sampled(predicting)

    try:
        yield watch
    finally:
        if profiler is not None:
            _read(profiler, run[0] if run else None, level)


def _started(predictor: Predictor, inputs: Arrays, level: Level) -> Profiler | None:
    with spans.span(START, Level.FRAMEWORK) as starting:
        profiler = None
        try:
            profiler = profiler_of(predictor)
            if profiler is None:
                name = type(predictor).__name__
                _fail(starting, f"{name} computes with no framework that has a profiler: there are no layers to show")
                return None
            profiler.start(level, inputs)
        except Exception as error:  # noqa: BLE001 - profilers fail in any way, and the request must be answered
            _fail(starting, f"the profiler did not start: {format_error(error)}")
            if profiler is not None:
                profiler.abandon()
            return None
        return profiler


def _read(profiler: Profiler, run: SpanContext | None, level: Level) -> None:
    with spans.span(READ, Level.FRAMEWORK) as reading:
        try:
            profile = profiler.stop()
        except Exception as error:  # noqa: BLE001 - see above
            _fail(reading, f"the profile could not be read: {format_error(error)}")
            return
        if run is not None:
            reading.set(**record(profile, run, level))


def _fail(span: AnySpan, why: str) -> None:
    span.set(**{ERROR: why, "failures": next(_failures)})


def record(profile: Profile, run: SpanContext, level: Level, most: int = MOST_SPANS) -> dict[str, Any]:
    """Record a profile as spans below that of its run; return what there is to say about it, as attributes.

    Args:
        run: The span of the run.
        level: The deepest that is wanted.
        most: Spans that are recorded at most.
    """
    kept, cut = within(profile.events, level, most)
    contexts: dict[int, SpanContext | None] = {RUN: run}
    for event in kept:
        parent = contexts[event.parent]
        more = event.attributes if event.is_joined else {**event.attributes, JOINED: False}
        if parent is not None:
            contexts[event.id] = spans.record(
                event.name, event.level, parent, times_ns=(event.start_ns, event.end_ns), thread=event.thread,
                attributes={KIND: event.kind, **more},
            )  # fmt: skip
    said: dict[str, Any] = {"profiler": profile.by, "spans": len(kept), "joined_share": round(profile.accounted, 6)}
    if cut:
        said[CUT] = cut
    if profile.unread:
        said[UNREAD] = profile.unread
    if profile.clock_error_ns:
        said[CLOCK_ERROR] = profile.clock_error_ns
    why = _why_shallow(profile, level)
    return {**said, NOT_DEEPER: why} if why else said


def _why_shallow(profile: Profile, level: Level) -> str:
    """Return why a level that is asked for is not there; empty if it is. The level `system` comes from elsewhere."""
    if not profile.events:
        return f"{profile.by} saw nothing run: the predictor computes with another framework, or with none"
    needed = Level.LIBRARY if level == Level.SYSTEM else level
    if profile.deepest >= needed:
        return ""
    return f"there is nothing below the level {profile.deepest.name.lower()}: {profile.why_not_deeper}"


def offset_ns() -> int:
    """Return what must be added to times since 1970 for those of `time.monotonic_ns`, within a microsecond or so."""
    found = []
    for _ in range(5):
        before_ns, wall_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        found.append((after_ns - before_ns, (before_ns + after_ns) // 2 - wall_ns))
    return min(found)[1]
