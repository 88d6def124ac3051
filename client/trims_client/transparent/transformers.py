"""`from_pretrained` with a dtype that the checkpoint has not: the cast weights come from shared memory, made once.

The library maps a safetensors file, and copies each tensor that it casts (`_materialize_copy`). The adapter hands it
the tensor in that dtype in its place, where the store has it; all else of a load is the library's own. A checkpoint
that is loaded in its own dtypes is mapped by the library, and shared so already.
"""

from __future__ import annotations

import contextlib
import functools
import json

from trims_client.transparent.file_bytes import check_same, opened, wanted_file
from trims_client.transparent.outcomes import StepAsideError, is_proven, note_shared
from trims_client.transparent.replaced import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

    from trims_client.transparent.file_bytes import WantedFile

_LOADER = "transformers.from_pretrained"
#: Releases of transformers that the adapter was proven with.
_PROVEN = ("5.23",)
#: Names of dtypes in a safetensors file, by torch's.
_CAST_TO = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
#: By the format.
_MOST_HEADER_BYTES = 100_000_000
_FLOATS = (*_CAST_TO.values(), "F64")


def adapt(modeling: ModuleType) -> Callable[[], None]:
    """Put the adapter round `PreTrainedModel._load_pretrained_model`. Return what puts the original back."""
    import transformers
    from transformers import core_model_loading as core

    if not is_proven(_LOADER, transformers, _PROVEN):
        return lambda: None
    model_class = modeling.PreTrainedModel
    original, materialize = model_class._load_pretrained_model, core._materialize_copy

    @functools.wraps(original)
    def load(model: Any, state_dict: Any, checkpoint_files: Any, load_config: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as files:
            try:
                given = _slices(modeling.safe_open, state_dict, checkpoint_files, load_config, files)
            except StepAsideError as error:
                aside = error
            else:
                return original(model, given, checkpoint_files, load_config, *args, **kwargs)
        # Outside of the block: an error of the original has no context of ours.
        return aside.load(_LOADER, lambda: original(model, state_dict, checkpoint_files, load_config, *args, **kwargs))

    @functools.wraps(materialize)
    def copied(tensor: Any, device: Any = None, dtype: Any = None) -> Any:
        if isinstance(tensor, _Slice):
            tensor = tensor.cast if dtype == tensor.cast.dtype else tensor.original
        return materialize(tensor, device, dtype)

    undo_load = replace([(model_class, "_load_pretrained_model")], original, load)
    undo_copy = replace([(core, "_materialize_copy")], materialize, copied)
    return lambda: (undo_load(), undo_copy())[0]


class _Slice:
    """A tensor of the file that was not read yet, as `safe_open.get_slice` returns it, and the cast one in memory."""

    def __init__(self, original: Any, cast: Any) -> None:
        self.original = original
        self.cast = cast

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __getitem__(self, index: Any) -> Any:
        return self.original[index]


def _slices(
    safe_open: Any, state_dict: Any, paths: Any, load_config: Any, files: contextlib.ExitStack
) -> dict[str, Any]:
    """Return the checkpoint's tensors by name, as the library reads them, with those from shared memory beside.

    Raises StepAsideError if the store has them not, or nothing is cast.
    """
    wanted = _CAST_TO.get(str(load_config.dtype).removeprefix("torch."))
    placed = {str(device) for device in (load_config.device_map or {}).values()} - {"cpu"}
    if state_dict is not None or not paths or not all(str(path).endswith(".safetensors") for path in paths):
        raise StepAsideError("no safetensors files")
    if wanted is None or load_config.hf_quantizer is not None or placed or load_config.disable_mmap:
        raise StepAsideError("an argument that the adapter does not know")
    to_cast = {path for path in paths if _dtypes(path) - {wanted}}
    if not to_cast:
        raise StepAsideError("nothing is cast")
    found: dict[str, Any] = {}
    shared = {path: _cast(path, wanted) for path in to_cast}
    for path in paths:
        file = files.enter_context(safe_open(path, framework="pt", device="cpu"))
        found.update({name: file.get_slice(name) for name in file.keys()})  # noqa: SIM118 - no mapping
        if path in shared:
            asked, cast = shared[path]
            check_same(asked.path, asked.identity)
            found.update({name: _Slice(found[name], tensor) for name, tensor in cast.items()})
    for asked, _ in shared.values():  # once all are there: the library loads alone if one is not
        note_shared(_LOADER, asked.nbytes)
    return found


def _dtypes(path: str) -> set[str]:
    """Return the floating-point dtypes of a file's tensors. Raises StepAsideError for what is no safetensors file."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= _MOST_HEADER_BYTES else {}
        return {each["dtype"] for name, each in header.items() if name != "__metadata__"} & set(_FLOATS)
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise StepAsideError("no safetensors file") from error


def _cast(path: str, dtype: str) -> tuple[WantedFile, Mapping[str, Any]]:
    """Return what was asked for, and the tensors of another dtype. Raises StepAsideError."""
    import torch

    asked = wanted_file(path)
    with opened(asked, f"cast,dtype={dtype},torch=={torch.__version__.partition('+')[0]}") as weights:
        from trims_client.frameworks.torch import state_dict

        with torch.inference_mode(False):  # where the library materializes parameters, that mode does not reach
            return asked, state_dict(weights, writable=True)
