"""Which devices there are, found without a context: from a stub of NVIDIA's library, and from the fake's books."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import NotSupportedError
from trims.memory.cuda.api import Device
from trims.memory.cuda.survey import Surveyed, Versions, driver_versions, survey, survey_all
from trims.testing.fake_cuda import CONTEXT_BYTES, FakeCuda, make_devices

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


UUID = "GPU-00000000-0000-0000-0000-000000000001"


PART = "MIG-00000000-0000-0000-0000-00000000000a"


class NvmlError(Exception):
    pass


class NotFoundError(NvmlError):
    pass


class NotSupportedHereError(NvmlError):
    pass


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """A stub of NVIDIA's library with one GPU, in parts if there are any."""

    def make(parts: tuple[str | None, ...] | None = None, **more: Any) -> SimpleNamespace:
        def mode(handle: str) -> list[int]:
            if parts is None:
                raise NotSupportedHereError
            return [1, 1]

        def part(handle: str, number: int) -> str:
            if (found := (parts or ())[number]) is None:
                raise NotFoundError
            return found

        stub = SimpleNamespace(
            NVMLError=NvmlError, NVMLError_NotFound=NotFoundError, NVMLError_NotSupported=NotSupportedHereError,
            nvmlInit=lambda: None, nvmlShutdown=lambda: ended.append(True), nvmlDeviceGetCount=lambda: 1,
            nvmlDeviceGetHandleByIndex=lambda number: UUID, nvmlDeviceGetUUID=lambda handle: handle,
            nvmlDeviceGetName=lambda handle: f"name of {handle[:3]}",
            nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(free=10, total=20),
            nvmlDeviceGetComputeRunningProcesses=lambda handle: [],
            nvmlDeviceGetMigMode=mode, nvmlDeviceGetMaxMigDeviceCount=lambda handle: len(parts or ()),
            nvmlDeviceGetMigDeviceHandleByIndex=part,
            nvmlSystemGetDriverVersion=lambda: "580.65.06", nvmlSystemGetCudaDriverVersion=lambda: 13020,
        )  # fmt: skip
        vars(stub).update(more)
        monkeypatch.setitem(sys.modules, "pynvml", stub)
        return stub

    ended: list[bool] = []
    return make


def test_a_whole_gpu_is_surveyed_with_its_free_memory(nvml: Callable[..., SimpleNamespace]) -> None:
    nvml()
    assert survey() == survey_all() == [Surveyed(UUID, "name of GPU", 10, 20)]
    assert driver_versions() == Versions("580.65.06", 13)


def test_a_partitioned_gpu_is_surveyed_by_its_parts(nvml: Callable[..., SimpleNamespace]) -> None:
    nvml(parts=(None, PART, None))
    part = Surveyed(PART, "name of MIG", 10, 20, parent=UUID)
    assert survey() == [part]
    assert survey_all() == [Surveyed(UUID, "name of GPU", 10, 20, partitioned=True), part]


def test_processes_count_whose_memory_the_driver_says(nvml: Callable[..., SimpleNamespace]) -> None:
    def refuse(handle: str) -> None:
        raise NotSupportedHereError

    running = [SimpleNamespace(pid=7, usedGpuMemory=5), SimpleNamespace(pid=8, usedGpuMemory=None)]
    nvml(nvmlDeviceGetComputeRunningProcesses=lambda handle: running)
    assert survey()[0].process_bytes == {7: 5}
    nvml(nvmlDeviceGetComputeRunningProcesses=refuse)
    assert survey()[0].process_bytes == {}


def test_what_the_library_refuses_is_said(nvml: Callable[..., SimpleNamespace]) -> None:
    def refuse(*_: object) -> None:
        raise NvmlError("Driver/library version mismatch")

    nvml(nvmlInit=refuse)
    with pytest.raises(NotSupportedError, match="no NVIDIA driver here: Driver/library version mismatch"):
        survey()
    nvml(nvmlDeviceGetMemoryInfo=refuse)
    with pytest.raises(NotSupportedError, match="cannot be asked"):
        survey()


def test_a_gpu_that_may_be_partitioned_and_is_not_is_surveyed_whole(nvml: Callable[..., SimpleNamespace]) -> None:
    nvml(nvmlDeviceGetMigMode=lambda handle: [0, 1])
    assert survey() == [Surveyed(UUID, "name of GPU", 10, 20)]


def test_the_library_is_ended_after_each_question_also_after_a_refusal(nvml: Callable[..., SimpleNamespace]) -> None:
    ended: list[int] = []

    def refuse(*_: object) -> None:
        raise NvmlError("not now")

    nvml(nvmlShutdown=lambda: ended.append(1))
    survey()
    driver_versions()
    assert len(ended) == 2
    nvml(nvmlShutdown=lambda: ended.append(1), nvmlDeviceGetCount=refuse)
    with pytest.raises(NotSupportedError, match="the NVIDIA driver cannot be asked: not now"):
        survey()
    assert len(ended) == 3


def test_without_the_package_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for question in (survey, survey_all, driver_versions):
        with pytest.raises(NotSupportedError, match=r"nvidia-ml-py is not installed; pip install .*\[gpu\]'"):
            question()


def test_a_fakes_devices_are_surveyed_with_what_others_left_free(folder: Path) -> None:
    kind = make_devices(folder, [Device(UUID, "Fake", 64 << 20)])
    assert survey(kind) == [Surveyed(UUID, "Fake", 64 << 20, 64 << 20)]
    cuda = FakeCuda(str(folder))
    cuda.use(UUID)
    address = cuda.allocate(8 << 20)
    (found,) = survey(kind)
    assert found.free_bytes == (64 << 20) - CONTEXT_BYTES - (8 << 20)
    assert found.process_bytes == {os.getpid(): CONTEXT_BYTES + (8 << 20)}
    cuda.free(address)
    cuda.leave()
    assert survey(kind)[0].free_bytes == 64 << 20
