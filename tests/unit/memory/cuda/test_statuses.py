"""Statuses of the driver: which of our errors each means, from which function."""

from __future__ import annotations

import pytest

from trims.core.errors import CapacityError, CudaError, DeviceLostError, NoSpaceError, NotSupportedError
from trims.memory.cuda.statuses import FULL, LOST, NOT_BY_REGISTERING, UNSUPPORTED, error_of


def test_every_status_we_know_is_one_the_package_knows() -> None:
    known = set(pytest.importorskip("cuda.bindings.driver").CUresult.__members__)
    for names in (FULL, LOST, UNSUPPORTED, NOT_BY_REGISTERING):
        assert names - known == set()
    assert NOT_BY_REGISTERING < LOST
    assert not LOST & (FULL | UNSUPPORTED)


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
    assert type(error_of("cuMemAlloc", f"CUDA_ERROR_{status}")) is error


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        ("DEVICE_UNAVAILABLE", "nvidia-smi -c DEFAULT"),
        ("MPS_MAX_CLIENTS_REACHED", "end some"),
        ("MPS_MAX_CONNECTIONS_REACHED", "CUDA_DEVICE_MAX_CONNECTIONS"),
    ],
)
def test_a_context_that_cannot_be_had_just_now_is_no_lost_device(status: str, remedy: str) -> None:
    found = f"CUDA_ERROR_{status}"
    taken = error_of("cuDevicePrimaryCtxRetain", found)
    assert type(taken) is CapacityError
    assert remedy in str(taken)
    assert type(error_of("cuMemAlloc", found)) is DeviceLostError


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
    found = error_of("cuMemHostRegister", f"CUDA_ERROR_{status}")
    assert type(found) is error


@pytest.mark.parametrize("status", ["NO_DEVICE", "UNKNOWN", "OPERATING_SYSTEM", "SYSTEM_DRIVER_MISMATCH"])
def test_a_driver_that_does_not_start_is_not_supported_and_names_the_remedy(status: str) -> None:
    """Nothing was there that could be lost. An H200 gave OPERATING_SYSTEM in a process with process ids of its own."""
    found = error_of("cuInit", f"CUDA_ERROR_{status}")
    assert type(found) is NotSupportedError
    assert "trims doctor" in str(found)


@pytest.mark.parametrize("function", ["cuMemImportFromShareableHandle", "cuIpcOpenMemHandle"])
def test_a_handle_that_the_driver_does_not_know_is_no_lost_device(function: str) -> None:
    """A descriptor of another file gives UNKNOWN there, which elsewhere means that the context is lost."""
    found = error_of(function, "CUDA_ERROR_UNKNOWN")
    assert type(found) is CudaError
    assert "stands for no memory" in str(found)
    assert type(error_of(function, "CUDA_ERROR_ECC_UNCORRECTABLE")) is DeviceLostError
