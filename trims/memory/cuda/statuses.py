"""Statuses of the CUDA driver, and the error of trims that each means: one table for all ways to the driver."""

from __future__ import annotations

from trims.core.errors import CapacityError, CudaError, DeviceLostError, NoSpaceError, NotSupportedError, TrimsError

FULL = {"CUDA_ERROR_OUT_OF_MEMORY"}
LOST = {
    "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "CUDA_ERROR_HARDWARE_STACK_ERROR", "CUDA_ERROR_CONTAINED", "CUDA_ERROR_ASSERT", "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_EXTERNAL_DEVICE", "CUDA_ERROR_TENSOR_MEMORY_LEAK", "CUDA_ERROR_UNKNOWN",
    "CUDA_ERROR_MPS_CONNECTION_FAILED", "CUDA_ERROR_MPS_RPC_FAILURE", "CUDA_ERROR_MPS_SERVER_NOT_READY",
    "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "CUDA_ERROR_MPS_CLIENT_TERMINATED",
}  # fmt: skip
#: Errors that mean a lost device, except when a context is taken: then none can be had just now. With reason and
#: remedy.
NO_CONTEXT = {
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "another process may have it to itself, by the compute mode EXCLUSIVE_PROCESS: "
    "`nvidia-smi -c DEFAULT` lets all use it, and so does MPS",
    "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED": "MPS has as many clients as it can serve: end some",
    "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED": "MPS has no connections left: end some of its clients, or let them start "
    "with a lower CUDA_DEVICE_MAX_CONNECTIONS",
}
#: Errors that mean a lost device, except when memory is registered: then they concern the memory. If the context is
#: lost, the next call reports it.
NOT_BY_REGISTERING = {"CUDA_ERROR_UNKNOWN", *NO_CONTEXT}
#: Functions that open what another process exported. UNKNOWN from them is about the handle; if the context is lost, the
#: next call reports it.
_OPENING = {"cuMemImportFromShareableHandle", "cuIpcOpenMemHandle"}
UNSUPPORTED = {
    "CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_INVALID_DEVICE", "CUDA_ERROR_NOT_PERMITTED",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "CUDA_ERROR_STUB_LIBRARY", "CUDA_ERROR_INVALID_CONTEXT",
}  # fmt: skip


def error_of(function: str, name: str) -> TrimsError:
    """Return the error that a status means.

    Args:
        function: Function of the driver, without its version: `cuMemAlloc`.
        name: Name that the driver gives the status: `CUDA_ERROR_OUT_OF_MEMORY`.
    """
    text = f"{function}: {name}"
    if name in FULL:
        return NoSpaceError(f"the device has no memory left ({text})")
    special = _special(function, name, text)
    if special is not None:
        return special
    if name in LOST:
        return DeviceLostError(f"the device or this process's context on it is lost ({text})")
    if name in UNSUPPORTED:
        return NotSupportedError(f"this device, driver or container cannot do that ({text})")
    return CudaError(text)


def _special(function: str, name: str, text: str) -> TrimsError | None:
    """Return the error that a status means from one function and not from others."""
    if function == "cuInit":  # CUDA_ERROR_UNKNOWN, say: nothing was there that could be lost
        return NotSupportedError(f"the NVIDIA driver does not start; `trims doctor` looks for the reason ({text})")
    if function == "cuDevicePrimaryCtxRetain" and name in NO_CONTEXT:
        return CapacityError(f"the device gives no context just now; {NO_CONTEXT[name]} ({text})")
    if function == "cuCtxPushCurrent" and name == "CUDA_ERROR_INVALID_CONTEXT":
        return DeviceLostError(f"this process has reset the device since its context was taken ({text})")
    if function in _OPENING and name == "CUDA_ERROR_UNKNOWN":
        return CudaError(f"the handle stands for no memory that can be opened here ({text})")
    if function == "cuMemHostRegister" and name not in LOST - NOT_BY_REGISTERING:
        return NotSupportedError(f"this memory cannot be registered with the device ({text})")
    return None
