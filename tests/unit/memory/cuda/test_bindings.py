"""The driver through its package: what statuses mean, and what a device is called."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import CapacityError, CudaError, DeviceLostError, NoSpaceError, NotSupportedError

if TYPE_CHECKING:
    from trims.memory.cuda.api import Device

driver = pytest.importorskip("cuda.bindings.driver")
bindings = pytest.importorskip("trims.memory.cuda.bindings")


def test_every_status_we_know_is_one_the_package_knows() -> None:
    known = set(driver.CUresult.__members__)
    for names in (bindings._FULL, bindings._LOST, bindings._UNSUPPORTED, bindings._NOT_BY_REGISTERING):
        assert names - known == set()
    assert bindings._NOT_BY_REGISTERING < bindings._LOST
    assert not bindings._LOST & (bindings._FULL | bindings._UNSUPPORTED)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("UNKNOWN", DeviceLostError),
        ("ASSERT", DeviceLostError),
        ("MISALIGNED_ADDRESS", DeviceLostError),
        ("ILLEGAL_INSTRUCTION", DeviceLostError),
        ("INVALID_PC", DeviceLostError),
        ("INVALID_ADDRESS_SPACE", DeviceLostError),
        ("LAUNCH_TIMEOUT", DeviceLostError),
        ("EXTERNAL_DEVICE", DeviceLostError),
        ("MPS_RPC_FAILURE", DeviceLostError),
        ("MPS_CLIENT_TERMINATED", DeviceLostError),
        ("OUT_OF_MEMORY", NoSpaceError),
        ("NOT_SUPPORTED", NotSupportedError),
        ("INVALID_VALUE", CudaError),
    ],
)
def test_what_never_works_again_is_a_lost_device(status: str, error: type[Exception]) -> None:
    assert type(bindings._error("cuMemAlloc", getattr(driver.CUresult, f"CUDA_ERROR_{status}"))) is error


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        ("DEVICE_UNAVAILABLE", "nvidia-smi -c DEFAULT"),
        ("MPS_MAX_CLIENTS_REACHED", "end some"),
        ("MPS_MAX_CONNECTIONS_REACHED", "CUDA_DEVICE_MAX_CONNECTIONS"),
    ],
)
def test_a_context_that_cannot_be_had_just_now_is_no_lost_device(status: str, remedy: str) -> None:
    found = getattr(driver.CUresult, f"CUDA_ERROR_{status}")
    taken = bindings._error("cuDevicePrimaryCtxRetain", found)
    assert type(taken) is CapacityError
    assert remedy in str(taken)
    assert type(bindings._error("cuMemAlloc", found)) is DeviceLostError


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("UNKNOWN", NotSupportedError),
        ("DEVICE_UNAVAILABLE", NotSupportedError),
        ("INVALID_VALUE", NotSupportedError),
        ("HOST_MEMORY_ALREADY_REGISTERED", NotSupportedError),
        ("OUT_OF_MEMORY", NoSpaceError),
        ("ILLEGAL_ADDRESS", DeviceLostError),
        ("ECC_UNCORRECTABLE", DeviceLostError),
    ],
)
def test_memory_that_cannot_be_registered_is_no_lost_device(status: str, error: type[Exception]) -> None:
    found = bindings._error("cuMemHostRegister", getattr(driver.CUresult, f"CUDA_ERROR_{status}"))
    assert type(found) is error


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
