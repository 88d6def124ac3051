"""The driver through its package: how a device is named."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trims.memory.cuda.api import Device

pytest.importorskip("trims.memory.cuda.bindings")


def test_a_part_of_a_gpu_has_the_uuid_that_nvml_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA gives 16 bytes for both; the name of the product distinguishes them."""
    described = describe(monkeypatch, b"NVIDIA H200 MIG 1g.18gb")
    assert described.uuid == PART
    assert describe(monkeypatch, b"NVIDIA H200").uuid == PART.replace("MIG", "GPU")


def describe(monkeypatch: pytest.MonkeyPatch, name: bytes) -> Device:
    attributes = {
        "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", "IPC_EVENT_SUPPORTED",
        "READ_ONLY_HOST_REGISTER_SUPPORTED",
    }  # fmt: skip
    stub = SimpleNamespace(
        CUdevice_attribute=SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{each}": each for each in attributes}),
        cuInit=lambda flags: (0,), cuDeviceGetCount=lambda: (0, 1), cuDeviceGet=lambda number: (0, number),
        cuDeviceGetName=lambda length, device: (0, name + b"\0"), cuDeviceTotalMem=lambda device: (0, 1 << 30),
        cuDeviceGetUuid=lambda device: (0, SimpleNamespace(bytes=bytes(15) + b"\x0a")),
        cuDeviceGetAttribute=lambda attribute, device: (0, 1),
    )  # fmt: skip
    bindings = ModuleType("cuda.bindings")
    bindings.driver = stub  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.delitem(sys.modules, "trims.memory.cuda.bindings", raising=False)
    from trims.memory.cuda.connect import connect

    try:
        (device,) = connect("driver").devices()
    finally:
        sys.modules.pop("trims.memory.cuda.bindings")  # it has bound the stub
    return device


PART = "MIG-00000000-0000-0000-0000-00000000000a"
