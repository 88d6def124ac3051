"""Folders of published models: which of the files has the weights."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from trims.core.errors import CallerError, NotSupportedError
from trims.formats.shards import is_shard
from trims.manifests.adapters import ADAPTER, adapter_words

if TYPE_CHECKING:
    from pathlib import Path

#: Files that hold the weights in a folder; the first that is there counts (names of Hugging Face, and of ONNX).
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model.onnx",
)
#: Patterns for the only file of its kind, if none of those is there: an index of shards, then a file of weights.
_INDEX = re.compile(r".+\.(safetensors|bin)\.index(\.[^./]+)?\.json\Z", re.DOTALL)
_FILE = re.compile(r".+(\.(safetensors|bin|pt|pth|ckpt|onnx|npz|npy)|-symbol\.json)\Z", re.DOTALL)
#: Pattern of files that trainers leave beside the weights.
_TRAINING = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state.*|random_states.*)\.(bin|pt|pth)\Z")
#: Pattern of an adapter's weights.
_ADAPTER_WEIGHTS = re.compile(r"adapter_model\b.*\.(safetensors|bin|json)\Z")
_SHOWN_NAMES = 20


def weights_in(folder: Path) -> Path:
    """Return the file with the weights.

    Raises CallerError for a folder without, or with several that may be meant, NotSupportedError for an adapter's.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    indexes = [name for name in names if _INDEX.match(name)]
    files = [name for name in names if _FILE.match(name) and not _TRAINING.match(name)]
    found = indexes or [name for name in files if not is_shard(name)] or files
    if any(map(_ADAPTER_WEIGHTS.match, found)) and (folder / ADAPTER).is_file():
        raise NotSupportedError(adapter_words(str(folder), _base_of(folder / ADAPTER)))
    if len(found) == 1:
        return folder / found[0]
    if not found:
        raise CallerError(f"{folder} holds none of {', '.join(WEIGHTS)}; name the file with the weights itself")
    more = f" and {len(found) - _SHOWN_NAMES} more" if len(found) > _SHOWN_NAMES else ""
    if not indexes and all(map(is_shard, found)):
        raise CallerError(f"{folder} holds shards and no index of them (.index.json): {_listed(found)}{more}; fetch it")
    raise CallerError(f"{folder} holds several files of weights; name one itself: {_listed(found)}{more}")


def _base_of(config: Path) -> str:
    """Return the name of the model that an adapter belongs to; empty if it does not say it."""
    try:
        found = json.loads(config.read_bytes())
    except (OSError, ValueError, RecursionError):
        return ""
    base = found.get("base_model_name_or_path") if isinstance(found, dict) else None
    return base[:200] if isinstance(base, str) else ""


def _listed(names: list[str]) -> str:
    return ", ".join(ascii(name)[1:-1] if not name.isprintable() else name for name in names[:_SHOWN_NAMES])
