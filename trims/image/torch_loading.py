"""Loading of state dicts into torch modules: which modules do more than to take tensors, and layouts in memory.

Converters and sessions ask the same, so that a model has the same values at every place.
"""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Modules of torch's own, which take each tensor as it is, or under another name.
_PLAIN = "torch.nn."
_METHODS = ("load_state_dict", "_load_from_state_dict", "get_extra_state", "set_extra_state")


def own_loading(module: torch.nn.Module) -> str:
    """Return what in a module loads state dicts in its own way, such as `Net._load_from_state_dict`; empty: nothing.

    Only such a module may have other values than those of its tensors, keep some of them elsewhere, or write to them.
    """
    for each in module.modules():
        for name in _METHODS:
            if not _is_torchs(getattr(each, name)):
                return f"{type(each).__name__}.{name}"
        for hook in (*each._load_state_dict_pre_hooks.values(), *each._load_state_dict_post_hooks.values()):
            if not _is_torchs(hook):
                return f"a hook of {type(each).__name__}"
    return ""


def _is_torchs(function: Any) -> bool:
    function = getattr(function, "hook", function)  # torch wraps some hooks
    while isinstance(function, functools.partial):
        function = function.func
    return (getattr(function, "__module__", None) or "").startswith(_PLAIN)


def load_copies(
    module: torch.nn.Module, tensors: dict[str, torch.Tensor], *, ignore: Sequence[str] = (), strict: bool = True
) -> None:
    """Load tensors as torch does alone, by copies. Raises RuntimeError if they do not fit, and what the module raises.

    Args:
        module: The module, in memory.
        tensors: The tensors, which its code may write to.
        ignore: Patterns of names that may be left over.
        strict: No other name may be left over, and none be missing but further names of a tied parameter.
    """
    complete_tied(tensors, tied_names(module))
    drop_ignored(module, tensors, ignore)
    module.load_state_dict(tensors, strict=strict)


def drop_ignored(module: torch.nn.Module, tensors: dict[str, torch.Tensor], ignore: Sequence[str]) -> None:
    """Take out tensors whose names the module does not know, if they match a pattern."""
    known = set(module.state_dict(keep_vars=True)) if ignore else set()
    for name in [name for name in tensors if name not in known and any(fnmatchcase(name, each) for each in ignore)]:
        del tensors[name]


def strides_of(tensors: Iterable[tuple[str, Any]]) -> dict[str, list[int]]:
    """Return the strides of tensors that are not row-major, such as those in `torch.channels_last`, by name."""
    return {
        name: list(each.stride())
        for name, each in tensors
        if isinstance(each, torch.Tensor)
        and each.layout is torch.strided
        and each.numel()
        and each.stride() != _row_major(each.shape)
    }


def with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return a row-major tensor with other strides: a view if only lengths of 1 have others, else a private copy."""
    usual = _row_major(tensor.shape)
    if all(ours == theirs for extent, ours, theirs in zip(tensor.shape, strides, usual, strict=True) if extent > 1):
        return tensor.as_strided(tensor.shape, tuple(strides))
    made = torch.empty_strided(tensor.shape, tuple(strides), dtype=tensor.dtype, device=tensor.device)
    once = tuple(slice(0, None if step else 1) for step in strides)  # an expanded dimension is written once
    with torch.no_grad():
        made[once].copy_(tensor[once])
    return made


def restride(tensors: list[torch.Tensor], names: Iterable[str], strides: Mapping[str, Sequence[int]]) -> None:
    """Give tensors of a skeleton, whose names come in their order, the strides that those of its module have."""
    for number, name in enumerate(names):
        if name in strides:
            plain = tensors[number]
            made = with_strides(plain.detach(), strides[name])
            is_parameter = isinstance(plain, torch.nn.Parameter)
            tensors[number] = torch.nn.Parameter(made, plain.requires_grad) if is_parameter else made


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(step)
        step *= max(extent, 1)
    return tuple(reversed(steps))


def complete_tied(tensors: dict[str, torch.Tensor], tied: Iterable[Sequence[str]]) -> None:
    """Give all names of a tied parameter the same tensor: files often have only one of the names."""
    for names in tied:
        known = [name for name in names if name in tensors]
        for name in names if known else ():
            tensors.setdefault(name, tensors[known[-1]])


def tied_names(module: torch.nn.Module) -> list[list[str]]:
    """Return groups of two and more names that stand for the same parameter."""
    groups: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return [names for names in groups.values() if len(names) > 1]
