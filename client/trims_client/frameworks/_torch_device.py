"""PyTorch over weights on a device: the image's block is borrowed once, through DLPack, and tensors are cut out of it.

So an open costs the same for one layer and for a thousand, apart from some microseconds for each view. All views share
one storage, the whole block: `torch.save` of one view writes the whole block, and `torch.save` of many views writes it
once. There is no copy-on-write on a device: tensors that may be written are cloned there. Not covered: the decision
which tensors are shared and which are private (`trims_client.frameworks.torch`).
"""

from __future__ import annotations

import contextlib
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from trims.core.errors import NotSupportedError
from trims.image.torch_loading import restride
from trims_client.frameworks._torch_dtypes import dtype_of
from trims_client.mapping.dlpack import CUDA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trims.core.layout import TensorSpec
    from trims_client.weights import Weights


class Block:
    """A model's data block on its device, as one tensor.

    Args:
        weights: Model on a device. Raises NotSupportedError if this torch cannot reach the device.
    """

    def __init__(self, weights: Weights) -> None:
        data = weights.device_data()
        if data.__dlpack_device__()[0] == CUDA and not torch.cuda.is_available():
            raise NotSupportedError(
                f"{weights.name!r} lies at {weights.place}, and torch {torch.__version__} finds no CUDA device here; "
                "install a build for CUDA, or open the model with place='cpu'"
            )
        self._bytes = torch.from_dlpack(data)
        self.device = self._bytes.device
        self._typed: dict[torch.dtype, torch.Tensor] = {}

    def view(self, spec: TensorSpec) -> torch.Tensor:
        """One tensor, without a copy; it must not be written."""
        dtype, shape = dtype_of(spec), spec.shape
        if not prod(shape):
            return torch.empty(shape, dtype=dtype, device=self.device)
        whole = self._typed.get(dtype)
        if whole is None:
            length = self._bytes.numel() // dtype.itemsize * dtype.itemsize
            whole = self._typed[dtype] = self._bytes[:length].view(dtype)
        return whole.as_strided(shape, _strides(shape), spec.offset // dtype.itemsize)

    def private(self, spec: TensorSpec) -> torch.Tensor:
        """One tensor, cloned on the device."""
        return self.view(spec).clone()


def state_dict(weights: Weights, *, writable: bool) -> dict[str, torch.Tensor]:
    """See `trims_client.frameworks.torch.state_dict`."""
    block = Block(weights)
    cut = block.private if writable else block.view
    found: dict[str, torch.Tensor] = {}
    owners: dict[tuple[int, str, tuple[int, ...]], torch.Tensor] = {}
    for spec in weights.layout:
        place = (spec.offset, spec.dtype, spec.shape)
        owner = owners.get(place) if prod(spec.shape) else None
        found[spec.name] = cut(spec) if owner is None else owner.detach()
        owners.setdefault(place, found[spec.name])
    return found


def tensors(weights: Weights, attributes: Mapping[str, Any], *, writable: bool) -> list[torch.Tensor]:
    """Return the tensors that a skeleton refers to by number, in the order of the layout."""
    block = Block(weights)
    frozen = set(attributes["frozen"])
    plain = {*attributes["buffers"], *attributes["constants"]}
    found: list[torch.Tensor] = []
    for spec in weights.layout:
        if spec.name in plain:
            found.append(block.private(spec))
        else:
            made = block.private(spec) if writable else block.view(spec)
            found.append(torch.nn.Parameter(made, spec.name not in frozen))
    restride(found, weights.layout.tensors, attributes.get("strides", {}))
    return found


def bring_buffers(module: torch.nn.Module, weights: Weights) -> None:
    """Move buffers that are not among the weights to the device, because a module computes on one device."""
    device = Block(weights).device
    for submodule in module.modules():
        for name, buffer in submodule._buffers.items():
            if buffer is not None and not buffer.is_meta and buffer.device != device:
                submodule._buffers[name] = buffer.to(device)


@contextlib.contextmanager
def measured_workspace(weights: Weights) -> Iterator[None]:
    """See `trims_client.frameworks.torch.measured_workspace`."""
    kind, number = weights.device_data().__dlpack_device__()
    if kind != CUDA:
        raise NotSupportedError(f"torch measures its memory on CUDA devices; {weights.name!r} lies on another kind")
    torch.cuda.reset_peak_memory_stats(number)
    before = torch.cuda.memory_allocated(number)
    yield
    weights.report_workspace(max(0, torch.cuda.max_memory_allocated(number) - before))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense row-major tensor, in elements."""
    found = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        found[axis - 1] = found[axis] * shape[axis]
    return tuple(found)
