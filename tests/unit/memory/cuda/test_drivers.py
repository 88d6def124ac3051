"""What the driver's statuses mean to us: every name we know must be one of the package's."""

from __future__ import annotations

import pytest

from trims.core.errors import CapacityError, CudaError, DeviceLostError, NotSupportedError

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
        ("OUT_OF_MEMORY", CapacityError),
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
        ("OUT_OF_MEMORY", CapacityError),
        ("ILLEGAL_ADDRESS", DeviceLostError),
        ("ECC_UNCORRECTABLE", DeviceLostError),
    ],
)
def test_memory_that_cannot_be_registered_is_no_lost_device(status: str, error: type[Exception]) -> None:
    found = bindings._error("cuMemHostRegister", getattr(driver.CUresult, f"CUDA_ERROR_{status}"))
    assert type(found) is error
