"""Which devices there are and how much of their memory is free, found without a context: NVML, or the fake's books.

The daemon's own process uses this and nothing else of CUDA.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from trims.core.errors import NotSupportedError


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One device, as the driver's management library sees it.

    Attributes:
        uuid: As nvidia-smi prints it.
        free_bytes: Of its memory, whoever uses the rest.
    """

    uuid: str
    name: str
    free_bytes: int
    total_bytes: int


def survey(kind: str = "driver") -> list[Surveyed]:
    """All devices of the machine, in NVML's order.

    Args:
        kind: As for `trims.memory.cuda.api.connect`.

    Raises:
        NotSupportedError: There is no driver, or nvidia-ml-py is missing; the message says which.
    """
    kind, _, folder = kind.partition(":")
    if kind == "fake":
        fake = importlib.import_module("trims.testing.fake_cuda").FakeCuda(folder)
        return [Surveyed(d.uuid, d.name, fake.free_bytes(d), d.total_bytes) for d in fake.devices()]
    return _nvml()


def _nvml() -> list[Surveyed]:
    try:
        import pynvml
    except ImportError:
        raise NotSupportedError("the package nvidia-ml-py is not installed; pip install 'trims[gpu]'") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NotSupportedError(f"there is no NVIDIA driver here: {error}") from error
    try:
        return [_look(pynvml, number) for number in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        raise NotSupportedError(f"the NVIDIA driver cannot be asked: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def _look(pynvml: object, number: int) -> Surveyed:
    ask = pynvml
    handle = ask.nvmlDeviceGetHandleByIndex(number)  # type: ignore[attr-defined]
    memory = ask.nvmlDeviceGetMemoryInfo(handle)  # type: ignore[attr-defined]
    uuid, name = ask.nvmlDeviceGetUUID(handle), ask.nvmlDeviceGetName(handle)  # type: ignore[attr-defined]
    return Surveyed(uuid, name, int(memory.free), int(memory.total))
