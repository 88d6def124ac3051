"""Loading of shared weights into a module that is there, as `load_state_dict` loads a file's."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from trims.core.errors import CallerError
from trims.image.state_versions import renamed_versions
from trims.image.torch_loading import (
    complete_tied,
    drop_ignored,
    load_copies,
    own_loading,
    strides_of,
    tied_names,
    with_strides,
)
from trims_client.frameworks._torch_built import Views
from trims_client.frameworks._torch_views import WithVersions, device, image_tensors, private_views

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import torch

    from trims_client.weights import Weights


# Names of a module's parameters and buffers, and the tensors that each of them gets.

_SHOWN_NAMES = 20


def renamed(weights: Weights, found: Iterable[str], names: Callable[[str], str]) -> dict[str, str]:
    """Return the module's name of each tensor. Raises CallerError."""
    if not callable(names):
        raise CallerError(f"`names` is a {type(names).__name__}; give a function that takes a name and returns one")
    named: dict[str, str] = {}
    taken: dict[str, str] = {}
    for name in found:
        named[name] = wanted = names(name)
        if not isinstance(wanted, str):
            raise CallerError(f"`names` returned {wanted!r:.80} for {name!r}; it must return the module's name for it")
        if wanted in taken:
            raise CallerError(f"`names` calls both {taken[wanted]!r} and {name!r} of {weights.name!r} {wanted!r}")
        taken[wanted] = name
    return named


def take_non_persistent(
    module: torch.nn.Module, tensors: dict[str, torch.Tensor], buffers: Collection[str]
) -> list[str]:
    """Fill the buffers that no state dict has, and take them out of `tensors`. Return those left on meta."""
    left = []
    for name in sorted(set(buffers) - set(module.state_dict(keep_vars=True))):
        value = tensors.pop(name, None)
        owner, _, leaf = name.rpartition(".")
        submodule = module.get_submodule(owner)
        own = submodule.get_buffer(leaf)
        if value is not None:  # as torch does when it assigns
            submodule._buffers[leaf] = with_strides(value, own.stride()) if value.shape == own.shape else value
        elif own.is_meta:
            left.append(name)
    return left


def assign(module: torch.nn.Module, tensors: dict[str, torch.Tensor], name: str, *, strict: bool) -> None:
    """Give a module its tensors. Raises CallerError listing the names that do not fit, or all wrong shapes."""
    try:
        found = module.load_state_dict(tensors, strict=False, assign=True)
    except RuntimeError as error:
        raise does_not_fit(module, name, error) from error
    if strict and (found.missing_keys or found.unexpected_keys):
        raise CallerError(
            f"the weights of {name!r} do not fit this {type(module).__name__}: missing from the weights "
            f"{listed(found.missing_keys)}; left over {listed(found.unexpected_keys)}"
        )


def does_not_fit(module: torch.nn.Module, name: str, error: Exception) -> CallerError:
    """Return the error for weights that a module refuses."""
    return CallerError(f"the weights of {name!r} do not fit this {type(module).__name__}: {error}")


def retie(module: torch.nn.Module, tied: Sequence[Sequence[str]]) -> None:
    """Make all names of a tied parameter stand for one parameter again: that of the last name."""
    for *others, last in tied:  # the names may have had different values: copying would leave that of the last one
        parameter = module.get_parameter(last)
        for name in others:
            owner, _, leaf = name.rpartition(".")
            module.get_submodule(owner)._parameters[leaf] = parameter  # setattr would check and register again


def listed(names: Sequence[str]) -> str:
    """Return the first names in quotes, and how many more there are."""
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(map(repr, names[:_SHOWN_NAMES])) + more if names else "nothing"


def load(
    module: torch.nn.Module,
    weights: Weights,
    *,
    strict: bool = True,
    ignore: Sequence[str] = (),
    without: Collection[str] = (),
    writable: bool,
    names: Callable[[str], str] | None = None,
) -> torch.nn.Module:
    """See `load_into`. Names that match a pattern of `ignore` may be left over; those in `without` are not used."""
    own = own_loading(module)
    if own and not any(each.is_meta for each in itertools.chain(module.parameters(), module.buffers())):
        return _copied(module, weights, strict=strict, ignore=ignore, names=names)
    tied, views = tied_names(module), Views(module)
    tensors = _views(module, weights, without, writable=writable or bool(own), names=names)
    complete_tied(tensors, tied)
    unknown_buffers = take_non_persistent(module, tensors, _buffers(module))
    if unknown_buffers:
        unknown_buffers = _compute_buffers(module, tensors, unknown_buffers)
    drop_ignored(module, tensors, ignore)
    for name, strides in strides_of(module.state_dict(keep_vars=True).items()).items():
        if name in tensors and tensors[name].ndim == len(strides):
            tensors[name] = with_strides(tensors[name], strides)
    assign(module, tensors, weights.name, strict=strict)
    retie(module, tied)
    if weights.device is not None:
        device().bring_buffers(module, weights)
    if unknown_buffers:
        raise CallerError(
            f"buffers {listed(unknown_buffers)} are in no state dict and have no values on the meta device; build "
            "the module on the CPU, or name its builder in the manifest (option module)"
        )
    views.follow()
    return module


def _views(
    module: torch.nn.Module,
    weights: Weights,
    without: Collection[str],
    *,
    writable: bool,
    names: Callable[[str], str] | None,
) -> dict[str, torch.Tensor]:
    """Return the tensors by the module's names, and private ones for its buffers."""
    tensors = image_tensors(weights, writable=writable)
    for name in without:
        del tensors[name]
    named = {name: name for name in tensors} if names is None else renamed(weights, tensors, names)
    private, buffers = private_views(weights), _buffers(module)
    for spec in weights.layout:
        if named.get(spec.name) in buffers:
            tensors[spec.name] = private(spec)
    return _renamed(tensors, named)


def _buffers(module: torch.nn.Module) -> set[str]:
    return {name for name, _ in module.named_buffers(remove_duplicate=False)}


def _copied(
    module: torch.nn.Module,
    weights: Weights,
    *,
    strict: bool,
    ignore: Sequence[str],
    names: Callable[[str], str] | None,
) -> torch.nn.Module:
    """Load a module that loads in a way of its own, as torch does alone: its memory is private."""
    tensors: dict[str, torch.Tensor] = image_tensors(weights, writable=True)  # which its code may write to
    if names is not None:
        tensors = _renamed(tensors, renamed(weights, tensors, names))
    if weights.device is not None:
        module.to(device().Block(weights).device)
    take_non_persistent(module, tensors, _buffers(module))
    try:
        load_copies(module, tensors, ignore=ignore, strict=strict)
    except RuntimeError as error:
        raise does_not_fit(module, weights.name, error) from error
    return module


def _renamed(tensors: dict[str, torch.Tensor], named: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Return a state dict under other names: the tensors' and, with them, those of the modules that have versions."""
    found = WithVersions((named[name], tensor) for name, tensor in tensors.items())
    if hasattr(tensors, "_metadata"):
        found._metadata = renamed_versions(tensors._metadata, named)
    return found


def _compute_buffers(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> list[str]:
    """Give buffers on the meta device the values that the module's library computes. Return those it does not know."""
    from trims.image.transformers_models import buffers_of

    found = buffers_of(module, tensors)
    for name in names:
        if name in found:
            owner, _, leaf = name.rpartition(".")
            module.get_submodule(owner)._buffers[leaf] = found[name]
    return [name for name in names if name not in found]
