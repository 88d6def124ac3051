"""Samples of a process and its GPUs around a run, as attributes of its span: the level `system`."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from trims.trace import spans
from trims.trace.levels import Level
from trims.trace.span import OFF

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from trims.trace.span import AnySpan

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
