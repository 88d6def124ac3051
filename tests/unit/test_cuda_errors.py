"""What the driver's statuses mean to us: every name we know must be one of the package's."""

from __future__ import annotations

import pytest

from trims.core.errors import CapacityError, CudaError, DeviceLostError, NotSupportedError

driver = pytest.importorskip("cuda.bindings.driver")
bindings = pytest.importorskip("trims.memory.cuda.bindings")


def test_every_status_we_know_is_one_the_package_knows() -> None:
    known = set(driver.CUresult.__members__)
    for names in (bindings._FULL, bindings._LOST, bindings._UNSUPPORTED):
        assert names - known == set()
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
