"""Survey of the devices and their free memory, without a context: by NVML, or by the fake's files.

The daemon's own process uses this and nothing else of CUDA.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trims.core.errors import NotSupportedError
from trims.memory.cuda.connect import stand_in
from trims.process.packages import install_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One device, as the driver's management library sees it.

    Attributes:
        uuid: Name that nvidia-smi prints: `GPU-` and 36 characters, `MIG-` for a part of a partitioned GPU.
        free_bytes: Free memory of the whole device, all processes counted.
        parent: UUID of the GPU that it is a part of; empty for a whole one.
        partitioned: MIG mode is on: CUDA sees its parts, never itself.
        process_bytes: Process id -> bytes of its context and allocations there; without processes of which the driver
            does not say it, such as those of other containers. Memory that was imported counts in none.
    """

    uuid: str
    name: str
    free_bytes: int
    total_bytes: int
    parent: str = ""
    partitioned: bool = False
    process_bytes: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of the driver.

    Attributes:
        driver: Version that nvidia-smi prints, such as `580.65.06`.
        cuda: Major version of CUDA that it knows; 0 if it does not say.
    """

    driver: str
    cuda: int


def survey(kind: str = "driver") -> list[Surveyed]:
    """Return all devices that CUDA can use, in NVML's order; of a partitioned GPU, its parts.

    Args:
        kind: Argument of `trims.memory.cuda.connect.connect`.

    Raises:
        NotSupportedError: There is no driver, or nvidia-ml-py is missing; the message says which.
    """
    return [device for device in survey_all(kind) if not device.partitioned]


def survey_all(kind: str = "driver") -> list[Surveyed]:
    """Return all devices as `survey` does, and partitioned GPUs themselves, each before its parts."""
    if kind != "driver":
        fake = stand_in(kind)
        return [
            Surveyed(d.uuid, d.name, fake.free_bytes(d), d.total_bytes, process_bytes=fake.process_bytes(d))
            for d in fake.devices()
        ]
    with _nvml() as nvml:
        return [device for number in range(nvml.nvmlDeviceGetCount()) for device in _look(nvml, number)]


def driver_versions() -> Versions:
    """Return the versions of the driver and of its newest CUDA. Raises NotSupportedError as `survey` does."""
    with _nvml() as nvml:
        return Versions(str(nvml.nvmlSystemGetDriverVersion()), int(nvml.nvmlSystemGetCudaDriverVersion()) // 1000)


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """Begin the library for the block, and end it. Its refusals become NotSupportedError."""
    try:
        import pynvml
    except ImportError:
        raise NotSupportedError(f"the package nvidia-ml-py is not installed; {install_words('trims[gpu]')}") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NotSupportedError(f"there is no NVIDIA driver here: {error}") from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise NotSupportedError(f"the NVIDIA driver cannot be asked: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def _look(nvml: Any, number: int) -> Iterator[Surveyed]:
    """Yield one GPU and its parts."""
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    partitioned = _partitioned(nvml, handle)
    whole = _surveyed(nvml, handle, partitioned=partitioned)
    yield whole
    for part in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) if partitioned else ():
        try:
            found = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, part)
        except nvml.NVMLError_NotFound:  # the numbers have gaps
            continue
        yield _surveyed(nvml, found, parent=whole.uuid)


def _partitioned(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError_NotSupported:  # as most GPUs say
        return False


def _surveyed(nvml: Any, handle: Any, *, parent: str = "", partitioned: bool = False) -> Surveyed:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    return Surveyed(
        uuid, name, int(memory.free), int(memory.total), parent, partitioned, {} if partitioned else _used(nvml, handle)
    )


def _used(nvml: Any, handle: Any) -> dict[int, int]:
    """Return the bytes of each process that computes on a device, where the driver says them."""
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:  # not supported, or not permitted in this container
        return {}
    return {int(each.pid): int(each.usedGpuMemory) for each in running if each.usedGpuMemory}
