"""Modules made by a manifest's builder in a session: check that the weights fit, and follow them.

A converter refuses a module of other shapes or dtypes than the artifact's (`trims.formats.torch.skeleton`). A session
that builds the module itself must not be served something else meanwhile. Modules that have no skeleton often keep
tensors that belong to their parameters: views, and what `torch.nn.utils.weight_norm` computed.
"""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch
from torch.nn.utils.weight_norm import WeightNorm

from trims.core.errors import ArtifactError
from trims_client.frameworks._torch_dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims.core.layout import TensorSpec
    from trims_client.weights import Weights

_SHOWN_NAMES = 20
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def check_fits(
    module: torch.nn.Module, weights: Weights, ignore: Sequence[str], names: Mapping[str, str] | None = None
) -> list[str]:
    """Raise ArtifactError if a converter would refuse the module.

    Args:
        ignore: Patterns of names that may be left over.
        names: What the module calls each tensor of the weights; None for the same.

    Returns the names of weights that the module keeps values of its own for: buffers that are in no state dict.
    """
    state = module.state_dict(keep_vars=True)
    names = dict(zip(weights.layout.tensors, weights.layout.tensors, strict=True)) if names is None else names
    known = {names[name]: spec for name, spec in weights.layout.tensors.items()}
    given = list(known)
    missing = _complete(known, state)
    buffers = dict(module.named_buffers(remove_duplicate=False))
    own = [name for name in buffers if name not in state and name in known]
    unknown = [name for name in given if name not in state and name not in own]
    unexpected = [name for name in unknown if not _matches(name, ignore)]
    if missing or unexpected:
        raise ArtifactError(
            f"{weights.name!r} does not fit its module: missing {_listed(missing)}; unexpected {_listed(unexpected)} "
            "(option ignore: takes patterns of names that may be left over)"
        )
    for name, tensor in state.items():
        _check_alike(weights.name, known[name]._replace(name=name), tensor)
    for name in own:
        if not _matches(name, ignore):
            _check_alike(weights.name, known[name]._replace(name=name), buffers[name])
    return [name for name, called in names.items() if called in own]


def refuse_extra_state(module: torch.nn.Module, model: str) -> None:
    """Raise ArtifactError for a module with extra state that is no tensor, which images do not carry."""
    for name, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise ArtifactError(f"{model!r}: the module has {type(value).__name__} {name!r}, which images do not carry")


class Views:
    """Attributes of a module that are views of its parameters, to be made again of the parameters that replace them."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        plain = [(name, each) for name, each in module.named_parameters() if _is_plain(each)]
        owners = {each.untyped_storage().data_ptr(): name for name, each in plain}
        owners.pop(0, None)  # of tensors without memory
        self._found: list[tuple[torch.nn.Module, str, torch.Tensor, str]] = []
        for each in module.modules():
            for attribute, value in vars(each).items():
                if isinstance(value, torch.Tensor) and _is_plain(value):
                    owner = owners.get(value.untyped_storage().data_ptr())
                    if owner is not None:
                        self._found.append((each, attribute, value, owner))

    def follow(self) -> None:
        """Point the views to the parameters of now, and compute again what weight_norm keeps."""
        for each, attribute, view, owner in self._found:
            parameter = self._module.get_parameter(owner)
            source = parameter if view.requires_grad else parameter.detach()
            offset = parameter.storage_offset() + view.storage_offset()
            setattr(each, attribute, source.as_strided(view.shape, view.stride(), offset))
        for each in self._module.modules():
            for hook in each._forward_pre_hooks.values():
                if isinstance(hook, WeightNorm):
                    hook(each, ())


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided


def _complete(known: dict[str, TensorSpec], state: Mapping[str, torch.Tensor]) -> list[str]:
    """Give all names of a tied tensor the tensor that one of them has. Return the names that are missing."""
    groups: dict[int, list[str]] = defaultdict(list)
    for name, tensor in state.items():
        groups[id(tensor)].append(name)
    missing = []
    for names in groups.values():
        there = [name for name in names if name in known]
        for name in names if there else ():
            known.setdefault(name, known[there[-1]])
        missing += [] if there else names
    return missing


def _check_alike(model: str, spec: TensorSpec, tensor: object) -> None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        kind = type(tensor).__name__
        raise ArtifactError(f"{model!r}: the module has {kind} {spec.name!r}, which images do not carry")
    assert isinstance(tensor, torch.Tensor)
    if (DTYPES.get(spec.dtype), spec.shape) != (tensor.dtype, tuple(tensor.shape)):
        dtype = _NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        raise ArtifactError(
            f"{model!r}: tensor {spec.name!r} is {spec.dtype}{list(spec.shape)}, the module has "
            f"{dtype}{list(tensor.shape)}; let its builder return a module of the artifact's shapes and dtypes"
        )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(map(repr, names[:_SHOWN_NAMES])) + more if names else "nothing"
