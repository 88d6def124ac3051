"""ONNX Runtime over weights on a device: lends initializers there, and copies those that it needs on the host.

Initializers are lent through DLPack, and used in place where ONNX Runtime plans them on the device. It plans some on
the host: the inputs of operators that have no kernel for the device, or that take an input on the host (shapes). These
initializers are found by trying:

1. All initializers are fed from the device. ONNX Runtime ignores a value on the wrong device with a warning.
2. It looks for that tensor in the file that the program names, finds none, and fails with the tensor's name.
3. If that is a tensor of integers or booleans (a shape, an axis), it is fed from a private copy on the host, and the
   session is made again. If it is one of floats, the operator that reads it has no kernel for the device: the model is
   refused with that reason, because every weight of such operators would be copied, at the price of a session each.

The converter leaves few initializers of integers, because small ones travel in the program.

Feeding, ignoring and copying were tested with ONNX Runtime itself, over host memory that is declared to be a device's;
docs/operations.md says what a device has shown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from trims.core.errors import NotSupportedError
from trims_client.mapping.dlpack import CUDA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims_client.mapping.device import DeviceTensor
    from trims_client.weights import Weights

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
#: Levels of optimization that depend on no processor: standard operators, standard layouts.
_NEUTRAL = ("basic", "none")
#: dtypes that ONNX Runtime reads from a capsule. Booleans are lent as bytes, see `_Boolean`.
_LENT = ("F16", "F32", "F64", "BF16", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL")
#: dtypes of shapes, axes and masks: what an operator on the device may want on the host.
_INTEGERS = ("I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL")
_NOT_FED = re.compile(r"Deserialize tensor (.+?) failed")


class _Boolean:
    """A boolean tensor as ONNX Runtime takes it: the capsule has bytes, and `dtype` says that they are booleans."""

    dtype = "bool"

    def __init__(self, tensor: DeviceTensor) -> None:
        self._tensor = tensor

    def __dlpack__(self) -> object:
        return self._tensor.lend("U8", versioned=False)


def check_program(name: str, attributes: Mapping[str, Any]) -> None:
    """Raise NotSupportedError for a graph optimized for a processor, or an ONNX Runtime without memory of devices."""
    if not hasattr(onnxruntime.OrtValue, "from_dlpack"):
        raise NotSupportedError(
            f"ONNX Runtime {onnxruntime.__version__} takes no weights on a device (it has no OrtValue.from_dlpack); "
            "install a newer one, or open the model with place='cpu'"
        )
    if attributes["optimize"] not in _NEUTRAL:
        raise NotSupportedError(
            f"{name!r} was optimized for the CPU (optimize: {attributes['optimize']}), with layouts and operators that "
            f"a GPU does not have; say `optimize: basic` in the options of its manifest's artifact, or open it with "
            f"place='cpu'"
        )


def providers_on(weights: Weights, given: Sequence[Any] | None) -> list[Any]:
    """Execution providers that can read the weights in place, the CPU's last. Raises NotSupportedError."""
    kind, number = weights.device_data().__dlpack_device__()
    if kind != CUDA:  # the fake driver, whose device memory is host memory
        own: tuple[str, dict[str, Any]] = (CPU_PROVIDER, {})
    else:
        own = (CUDA_PROVIDER, {"device_id": number})
        there = onnxruntime.get_available_providers()
        if CUDA_PROVIDER not in there:
            raise NotSupportedError(
                f"{weights.name!r} lies at {weights.place}, and this onnxruntime has no {CUDA_PROVIDER} (it has "
                f"{', '.join(there)}); install onnxruntime-gpu instead, or open the model with place='cpu'"
            )
    chosen = [_completed(weights, provider, own) for provider in given or (own[0], CPU_PROVIDER)]
    return [provider for at, provider in enumerate(chosen) if provider not in chosen[:at]]


def _completed(weights: Weights, provider: Any, own: tuple[str, dict[str, Any]]) -> Any:
    name, settings = provider if isinstance(provider, tuple) else (provider, {})
    if name == CPU_PROVIDER:
        return provider
    if name != own[0]:
        raise NotSupportedError(f"{name} would copy every weight; weights at {weights.place} need {own[0]}")
    device = own[1]["device_id"]
    if str(settings.get("device_id", device)) != str(device):
        raise NotSupportedError(
            f"{weights.name!r} lies at {weights.place}, which is device {device} in this process; {name} was given "
            f"device_id {settings['device_id']}"
        )
    return (name, {**settings, **own[1]})


def values(weights: Weights, on_host: Sequence[str]) -> dict[str, onnxruntime.OrtValue]:
    """Return an OrtValue for each initializer, lent or copied to the host (those in `on_host`).

    Raises NotSupportedError.
    """
    return {name: (_copied if name in on_host else _lent)(weights, name) for name in weights}


def _lent(weights: Weights, name: str) -> onnxruntime.OrtValue:
    tensor = weights.on_device(name)
    if tensor.dtype not in _LENT:
        raise NotSupportedError(
            f"ONNX Runtime takes no {tensor.dtype} from a device (initializer {name!r}); open the model with "
            f"place='cpu'"
        )
    return onnxruntime.OrtValue.from_dlpack(_Boolean(tensor) if tensor.dtype == "BOOL" else tensor)


def _copied(weights: Weights, name: str) -> onnxruntime.OrtValue:
    import numpy as np

    from trims_client.weights import numpy_dtype

    tensor = weights.on_device(name)
    if tensor.dtype == "BF16":  # numpy has none
        bits = np.frombuffer(tensor.to_host(), np.uint16).reshape(tensor.shape)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)
    array = np.frombuffer(tensor.to_host(), numpy_dtype(tensor.dtype)).reshape(tensor.shape)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def build(
    weights: Weights,
    make: Callable[[onnxruntime.SessionOptions | None, Mapping[str, onnxruntime.OrtValue]], Any],
    options: onnxruntime.SessionOptions | None,
) -> Any:
    """Make a session; initializers that ONNX Runtime needs on the host are copied there.

    Args:
        weights: Model on a device.
        make: Makes a session with the given options (None for its own) and values. Options can be used only once.
    """
    on_host: list[str] = []
    while True:
        given = values(weights, on_host)
        try:
            made = make(None, given)
        except Fail as error:
            found = _NOT_FED.search(str(error))
            if found is None or found[1] in on_host or found[1] not in weights:
                raise
            _check_may_be_copied(weights, found[1])
            on_host.append(found[1])
            continue
        if options is not None:
            made = make(options, given)
        made.host_copies = tuple(on_host)
        if on_host:
            _log_placement(weights, on_host)
        return made


def _check_may_be_copied(weights: Weights, name: str) -> None:
    """Raise NotSupportedError for an initializer of floats that ONNX Runtime does not take from the device."""
    dtype = weights.layout.tensors[name].dtype
    if dtype not in _INTEGERS:
        raise NotSupportedError(
            f"{weights.name!r}: ONNX Runtime wants the initializer {name!r} ({dtype}) on the host, because it has no "
            f"kernel for the device for the operator that reads it; open the model with place='cpu'"
        )


def _log_placement(weights: Weights, on_host: Sequence[str]) -> None:
    import logging

    nbytes = sum(weights.layout.tensors[name].nbytes for name in on_host)
    logging.getLogger(__name__).warning(
        "%s: ONNX Runtime needs %d of %d initializers on the host; %d bytes are copied there: %s",
        weights.name, len(on_host), len(weights), nbytes, ", ".join(on_host[:20]),
    )  # fmt: skip
