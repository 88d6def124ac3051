"""Names of a module's parameters and buffers, and the tensors that each of them gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import CallerError
from trims.image.torch_loading import with_strides

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import torch

    from trims_client.weights import Weights

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
