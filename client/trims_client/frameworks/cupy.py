"""cupy arrays over weights on a device: the shared bytes themselves, in a dictionary by name.

The arrays use cupy's class for memory that it does not own (`UnownedMemory`), not DLPack. DLPack would have no
advantage: cupy's import of it knows no bfloat16 and ignores the read-only flag.

Example:
    with trims.connect() as session, session.open("bert", place="gpu") as weights:
        arrays = trims.cupy.arrays(weights)

WARNING: the arrays must not be written, and cupy has no flag that says so. If the memory is shared by `vmm`, the device
should stop a kernel that writes, and with it everything that this process has on the device. If it is shared by `ipc`,
the write changes the weights of all processes. `array.copy()` makes a private copy.

Arrays keep the memory open: they stay valid after `weights.close()`, and the lease ends with the last of them. Written
against cupy 14; docs/operations.md says what a device has shown.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from trims.core.errors import NotSupportedError, TensorNotFoundError
from trims_client.mapping.dlpack import CUDA
from trims_client.weights import numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trims.core.layout import TensorSpec
    from trims_client.weights import Weights


def arrays(weights: Weights, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the tensors by name.

    Args:
        weights: Model on a CUDA device.
        names: Tensors to return; None for all that the installed cupy has a dtype for: 14.0 refuses float8, 14.2 shows
            it. The others (and all of ml_dtypes, where that is missing) are left out then, and a warning names them.

    Returns:
        cupy arrays over the shared bytes, without a copy; tied names are arrays over the same bytes.

    Raises:
        NotSupportedError: cupy is missing, the model does not lie on a CUDA device, or cupy or numpy lack the dtype of
            a tensor that was named; `weights.on_device(name)` works for every dtype.
        TensorNotFoundError: The model has no tensor of a name.
    """
    block = weights.device_data()
    kind, number = block.__dlpack_device__()
    if kind != CUDA:
        raise NotSupportedError(f"{weights.name!r} lies on no CUDA device, and cupy computes only there")
    cupy = _cupy()
    with cupy.cuda.Device(number):
        whole = cupy.cuda.UnownedMemory(block.address, block.nbytes, block, number)
        if names is None:
            return _all_that_cupy_has(weights, functools.partial(_array, cupy, whole))
        return {name: _array(cupy, whole, _spec(weights, name)) for name in names}


def _spec(weights: Weights, name: str) -> TensorSpec:
    try:
        return weights.layout.tensors[name]
    except KeyError:
        raise TensorNotFoundError(f"{weights.name!r} has no tensor {name!r}") from None


def _all_that_cupy_has(weights: Weights, make: Callable[[TensorSpec], Any]) -> dict[str, Any]:
    found, left_out = {}, []
    for spec in weights.layout:
        try:
            found[spec.name] = make(spec)
        except NotSupportedError as error:
            left_out.append(str(error))
    if left_out:
        import logging

        told = "; ".join(left_out[:5])
        logging.getLogger(__name__).warning(
            "%s: %d of %d tensors are left out: %s", weights.name, len(left_out), len(weights), told
        )
    return found


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise NotSupportedError(
            f"cupy is not installed ({error}); install the wheel for your CUDA (cupy-cuda13x, ...)"
        ) from None
    return cupy


def _array(cupy: Any, whole: Any, spec: TensorSpec) -> Any:
    try:
        dtype = numpy_dtype(spec.dtype)
        return cupy.ndarray(spec.shape, dtype, cupy.cuda.MemoryPointer(whole, spec.offset))
    except (NotSupportedError, TypeError, ValueError) as error:
        raise NotSupportedError(
            f"cupy cannot show tensor {spec.name!r} of {spec.dtype} ({error}); weights.on_device({spec.name!r}) has "
            "its bytes for other libraries"
        ) from error
