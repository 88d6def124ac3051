"""From a path that a user typed to a manifest: which file holds the weights, and what the model is called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactNotFoundError, CallerError

if TYPE_CHECKING:
    from pathlib import Path

#: In a folder, the first of these that is there holds the weights (Hugging Face's names, and ONNX's).
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
    "pytorch_model.bin",
    "model.onnx",
)
#: File names that say nothing about the model.
#: Of a name.
_MOST_LETTERS = 128
_GENERIC = frozenset({"model", "pytorch_model", "diffusion_pytorch_model", "weights", "checkpoint", "consolidated"})


def manifest_for(artifact: Path, name: str | None) -> dict[str, Any]:
    """A manifest for a bare artifact, or for a folder with one: its absolute path under a name made from it.

    Raises ArtifactNotFoundError if nothing is there, CallerError if a folder holds no weights of a known name.
    """
    if not artifact.exists():
        raise ArtifactNotFoundError(f"{artifact} does not exist")
    main = _weights_in(artifact) if artifact.is_dir() else artifact
    return {"name": name or _name_for(main.absolute()), "artifact": {"path": str(main.absolute())}}


def _weights_in(folder: Path) -> Path:
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise CallerError(f"{folder} holds none of {', '.join(_WEIGHTS)}; name the file with the weights itself")


def _name_for(main: Path) -> str:
    stem = main.name.split(".")[0]
    if stem in _GENERIC:
        stem = _name_of_folder(main.parent) or stem
    made = re.sub(r"[^a-z0-9._-]", "-", stem.lower())[:_MOST_LETTERS].strip("._-")
    if not made:
        raise CallerError(f"no name can be made from {main.name!r}; give one (--name)")
    return made


def _name_of_folder(folder: Path) -> str:
    """The folder's name; in a cache of Hugging Face (models--ORG--NAME/snapshots/HASH) the model's."""
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name
