from __future__ import annotations

import mmap
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trims_predictors.frameworks.profiling import gpu_samples, rss_bytes, used

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


# Samples of GPUs by NVML, which is there, or fails in one of its ways.


class NVMLError(Exception):
    """Stands for NVML's own."""


def nvml(count: Callable[[], int] = lambda: 1, init: Callable[[], None] = lambda: None) -> Any:
    made = SimpleNamespace(closed=0, NVMLError=NVMLError, nvmlInit=init, nvmlDeviceGetCount=count)
    made.nvmlDeviceGetHandleByIndex = lambda index: index
    made.nvmlDeviceGetMemoryInfo = lambda device: SimpleNamespace(used=4096 + device)
    made.nvmlDeviceGetUtilizationRates = lambda device: SimpleNamespace(gpu=50 + device)

    def shut_down() -> None:
        made.closed += 1

    made.nvmlShutdown = shut_down
    return made


def test_each_gpu_has_its_memory_and_utilization(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake := nvml(lambda: 2))
    assert gpu_samples() == {
        "system.gpu0.used_bytes": 4096, "system.gpu0.utilization_percent": 50,
        "system.gpu1.used_bytes": 4097, "system.gpu1.utilization_percent": 51,
    }  # fmt: skip
    assert fake.closed == 1


def failing() -> Any:
    raise NVMLError("it fell off the bus")


def test_where_there_is_no_nvml_there_are_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_samples() == {}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(init=failing))
    assert gpu_samples() == {}


def test_a_gpu_that_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake := nvml(count=failing))
    assert gpu_samples() == {"system.gpu.error": "it fell off the bus"}
    assert fake.closed == 1


def test_what_a_process_used_only_grows() -> None:
    before = used()
    kept = mmap.mmap(-1, 32 << 20)  # pages that are new for certain: an allocator may have old ones
    kept.write(b"\1" * len(kept))
    after = used()
    assert after["minor_faults"] > before["minor_faults"]
    assert all(after[name] >= value for name, value in before.items())
    assert rss_bytes() > len(kept)
