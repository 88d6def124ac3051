"""What is to know of a checkpoint beside its tensors, the same with torch and without it.

Which of its values are the weights, and how a session builds the module that they belong to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactError
from trims.image.program import TORCH_BUILDER, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trims.formats.base import Artifact

_WRAPPERS = ("state_dict", "model_state_dict", "model")


def state_dict(loaded: Any, path: Path, is_tensor: Callable[[Any], bool]) -> tuple[dict[str, Any], list[str]]:
    """The tensors by name, and the names of what was left out.

    Args:
        loaded: The checkpoint's value: a state dict, or a dict with one under a usual name.
        path: For messages.
        is_tensor: Tells tensors from other values.

    Raises ArtifactError for anything else.
    """

    def has_tensors(value: Any) -> bool:
        return isinstance(value, dict) and any(map(is_tensor, value.values()))

    ignored: list[str] = []
    for wrapper in _WRAPPERS:
        if isinstance(loaded, dict) and has_tensors(loaded.get(wrapper)):
            ignored += [str(key) for key in loaded if key != wrapper]
            loaded = loaded[wrapper]
            break
    if not isinstance(loaded, dict) or (loaded and not has_tensors(loaded)):
        raise ArtifactError(
            f"{path}: neither a state dict nor a dict with one under {', '.join(_WRAPPERS)}, "
            f"but a {type(loaded).__name__}"
        )
    tensors = {key: value for key, value in loaded.items() if is_tensor(value)}
    if strange := [key for key in tensors if not isinstance(key, str)]:
        raise ArtifactError(f"{path}: a tensor is named {strange[0]!r}, which is no string")
    return tensors, ignored + [str(key) for key in loaded if key not in tensors]


def metadata_of(ignored: Sequence[str]) -> dict[str, str]:
    """What an image says of the values that were left out."""
    return {"ignored": ", ".join(ignored)} if ignored else {}


def builder_of(artifact: Artifact) -> Program | None:
    """What an artifact in place has in a skeleton's stead: which function builds its module; None if none is named."""
    options = artifact.options
    if "module" not in options:
        return None
    named = {name: options[name] for name in ("module", "module_args", "ignore") if name in options}
    return Program(TORCH_BUILDER, {**named, "origin": artifact.origin})
