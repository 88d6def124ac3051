"""Tensors over shared weights: state dicts, and those that a skeleton refers to by number."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from trims.core.errors import ArtifactError
from trims.core.layout import DTYPE_BYTES
from trims.image.state_versions import STATE_VERSIONS, decode_versions
from trims.image.torch_loading import restride
from trims_client.frameworks._torch_dtypes import DTYPES as _DTYPES
from trims_client.frameworks._torch_dtypes import dtype_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trims.core.layout import TensorSpec
    from trims_client.weights import Weights

# torch warns once in a process that a tensor over a read-only buffer must not be written. Trigger that warning here and
# suppress it, so that no view pays for a warning filter. The module's docstring has the warning.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


def state_dict(weights: Weights, *, writable: bool = False) -> dict[str, torch.Tensor]:
    """Return the artifact's tensors by name.

    Args:
        writable: Private copy-on-write memory instead of shared read-only memory; on a device, copies.

    Returns:
        Views, without a copy, whatever the size. Tied names share one storage; on a device all tensors do. The module's
        docstring says what a write into a view that is not writable does, and which tensors are copies nevertheless.
        Elements are in row-major order, also of a tensor that was saved in another, such as `torch.channels_last`. If
        the checkpoint has versions of its modules (`_metadata`), so has the dict.
    """
    found = image_tensors(weights, writable=writable)
    program = weights.program()
    for name in () if program is None else program.attributes.get("added", ()):
        found.pop(name, None)
    return found


def image_tensors(weights: Weights, *, writable: bool) -> WithVersions:
    """Return the artifact's tensors, as `state_dict`, and those that are its module's own."""
    found = WithVersions(_views(weights, writable=writable))
    text = weights.view.string(STATE_VERSIONS)
    if text is not None:
        try:
            found._metadata = decode_versions(text)
        except ValueError as error:
            raise ArtifactError(f"the versions of modules in {weights.name!r} cannot be read: {error}") from error
    return found


class WithVersions(OrderedDict[str, torch.Tensor]):
    """State dict that may have versions of modules, which `load_state_dict` passes on to them."""

    _metadata: Any


def _views(weights: Weights, *, writable: bool) -> dict[str, torch.Tensor]:
    if weights.device is not None:
        on_device: dict[str, torch.Tensor] = device().state_dict(weights, writable=writable)
        return on_device
    data = weights.data(private=writable)
    found: dict[str, torch.Tensor] = {}
    owners: dict[tuple[int, str, tuple[int, ...]], torch.Tensor] = {}
    for spec in weights.layout:
        place = (spec.offset, spec.dtype, spec.shape)
        owner = owners.get(place) if spec.nbytes else None
        found[spec.name] = _tensor(weights, data, spec, private=writable) if owner is None else owner.detach()
        owners.setdefault(place, found[spec.name])
    return found


def device() -> Any:
    """Return the module for weights on devices, imported only when it is needed."""
    from trims_client.frameworks import _torch_device

    return _torch_device


def private_views(weights: Weights) -> Callable[[TensorSpec], torch.Tensor]:
    if weights.device is not None:
        made: Callable[[TensorSpec], torch.Tensor] = device().Block(weights).private
        return made
    private = weights.data(private=True)
    return lambda spec: _tensor(weights, private, spec, private=True)


def _tensor(weights: Weights, data: memoryview, spec: TensorSpec, *, private: bool) -> torch.Tensor:
    """Return a view of the data block, or of a copy if the tensor is not aligned to its element there."""
    if spec.offset & 7 == 0 or spec.offset % DTYPE_BYTES[spec.dtype] == 0:
        return _view(data, spec)
    copy = bytearray(weights.raw(spec.name)) if private else weights.aligned(spec.name)
    return _view(memoryview(copy), spec._replace(offset=0))


def _view(data: memoryview, spec: TensorSpec) -> torch.Tensor:
    dtype = _DTYPES.get(spec.dtype) or dtype_of(spec)
    if not spec.nbytes:
        return torch.empty(spec.shape, dtype=dtype)
    shape = spec.shape
    flat = torch.frombuffer(data, dtype=dtype, count=spec.nbytes // dtype.itemsize, offset=spec.offset)
    return flat if len(shape) == 1 else flat.view(shape)


def tensors_of(weights: Weights, attributes: Mapping[str, Any], writable: bool) -> list[torch.Tensor]:
    """Return the tensors that the skeleton refers to by number, in the order of the layout.

    This is most of the time that `module` takes, hence the local names in the loop.
    """
    private = weights.data(private=True)
    shared = private if writable else weights.data()
    frozen = set(attributes["frozen"])
    plain = {*attributes["buffers"], *attributes["constants"]}
    view_of, parameter, dtypes, found = torch.frombuffer, torch.nn.Parameter, _DTYPES, []
    for spec in weights.layout:
        name, dtype, shape, offset = spec
        own = name in plain
        if dtype in dtypes and (count := prod(shape)):
            made = view_of(private if own else shared, dtype=dtypes[dtype], count=count, offset=offset)
            if len(shape) != 1:
                made = made.view(shape)
        else:
            made = _view(private, spec)
        found.append(made if own else parameter(made, name not in frozen))
    if strides := attributes.get("strides"):
        restride(found, weights.layout.tensors, strides)
    return found
