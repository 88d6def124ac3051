"""Manifests for a path that a user typed: which file holds the weights, and what the model is called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactNotFoundError, CallerError
from trims.formats.folders import weights_in

if TYPE_CHECKING:
    from pathlib import Path

#: Most letters of a name.
_MOST_LETTERS = 128
#: File names that say nothing about the model.
_GENERIC = frozenset({"model", "pytorch_model", "diffusion_pytorch_model", "weights", "checkpoint", "consolidated"})


def manifest_for(artifact: Path, name: str | None, state_key: str | None = None) -> dict[str, Any]:
    """Return a manifest for a bare artifact, or for a folder with one: the absolute path, and a name made from that.

    Args:
        artifact: The file or folder.
        name: The model's name; None for one made from the file's or the folder's.
        state_key: Which of a checkpoint's values is the state dict; None to have it found.

    Raises:
        ArtifactNotFoundError: Nothing is there.
        CallerError: The path is no text, or the folder holds no weights, or several files that may be meant.
    """
    check_text(artifact)
    if not artifact.exists():
        raise ArtifactNotFoundError(f"{artifact} does not exist")
    main = weights_in(artifact) if artifact.is_dir() else artifact
    check_text(main)
    options = {} if state_key is None else {"options": {"state_key": state_key}}
    return {"name": name or _name_for(main.absolute()), "artifact": {"path": str(main.absolute()), **options}}


def check_text(path: Path) -> None:
    """Raise CallerError for a path that is no text in UTF-8, as manifests and messages are."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        raise CallerError(
            f"the path {str(path)!r} is not UTF-8, which names in manifests and messages are; rename the file or "
            "folder, or make a link with another name"
        ) from error


def _name_for(main: Path) -> str:
    stem = main.name.split(".")[0]
    if stem in _GENERIC:
        stem = _name_of_folder(main.parent) or stem
    made = re.sub(r"[^a-z0-9._-]", "-", stem.lower())[:_MOST_LETTERS].strip("._-")
    if not made:
        raise CallerError(f"no name can be made from {main.name!r}; give one (--name)")
    return made


def _name_of_folder(folder: Path) -> str:
    """Return the folder's name; in a cache of Hugging Face (models--ORG--NAME/snapshots/HASH) the model's."""
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name
