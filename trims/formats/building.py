"""Building the torch module that weights belong to, by the function that a manifest names.

Converters do it to make a skeleton, and sessions whose model has no skeleton yet, so both have the same module. This is
the one file of this folder that `trims_client` imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from trims.core.errors import ArtifactError
from trims.formats.child import load_name

if TYPE_CHECKING:
    from collections.abc import Mapping


def build_module(call: Any, arguments: Any, what: str) -> torch.nn.Module:
    """Call the builder; parameters of the module are not filled.

    Args:
        call: `package.module:function`.
        arguments: Its keyword arguments.
        what: Whose module it is, for messages.

    Raises:
        ArtifactError: It is named wrongly, or returns no module.
        NotSupportedError: It cannot be imported here.
    """
    if not isinstance(call, str) or ":" not in call or not isinstance(arguments, dict):
        raise ArtifactError(f"{what}: option module must be 'package.module:function' and module_args a map")
    builder = load_name(call, f"{what}: the module builder")
    with NoRandomInitialization():
        module = builder(**arguments)
    if not isinstance(module, torch.nn.Module):
        raise ArtifactError(f"{what}: {call} returned a {type(module).__name__}, not a torch.nn.Module")
    return module


class NoRandomInitialization(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed
    """Skips filling parameters with random numbers, seconds for a large model: all of them come from the artifact."""

    #: By name: libraries put functions of their own in the place of torch's, which call those where no mode looks.
    _FILLS = frozenset(
        (
            "normal_", "uniform_", "erfinv_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_",
            "xavier_normal_", "trunc_normal_", "orthogonal_",
        )
    )  # fmt: skip

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        given = dict(kwargs or {})
        target = args[0] if args else given.get("tensor")
        if getattr(func, "__name__", "") in self._FILLS and isinstance(target, torch.nn.Parameter):
            return target
        return func(*args, **given)
