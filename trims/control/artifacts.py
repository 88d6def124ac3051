"""Manifests for a path that a user typed: which file holds the weights, and what the model is called."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactNotFoundError, CallerError
from trims.formats.folders import weights_in
from trims.formats.transformers.converter import TransformersConverter
from trims.formats.transformers.folder import is_model_folder, main_of_model, read_folder
from trims.formats.transformers.task import tag_of, task_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Most letters of a name.
_MOST_LETTERS = 128
#: File names that say nothing about the model.
_GENERIC = frozenset(
    {"config", "modules", "model", "pytorch_model", "diffusion_pytorch_model", "weights", "checkpoint", "consolidated"}
)


#: Options of the folders of Hugging Face models, and of checkpoints.
_OF_FOLDERS, _OF_CHECKPOINTS = frozenset({"task", "trust_remote_code"}), frozenset({"state_key"})
_PIECE_BYTES = 1 << 20


def manifest_for(artifact: Path, name: str | None, options: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return a manifest for a bare artifact, or for a folder with one: the absolute path, and a name made from that.

    The folder of a Hugging Face model becomes one model of all its files, each with its digest.

    Args:
        name: The model's name; None for one made from the file's or the folder's.
        options: `state_key` of a checkpoint; `task` and `trust_remote_code` of a folder.

    Raises:
        ArtifactNotFoundError: Nothing is there.
        CallerError: The path is no text, or the folder holds no weights, or several files that may be meant.
    """
    check_text(artifact)
    if not artifact.exists():
        raise ArtifactNotFoundError(f"{artifact} does not exist{spelled_alike(artifact)}")
    if artifact.is_dir() and is_model_folder(artifact):
        _refuse(options, _OF_CHECKPOINTS, f"{artifact} is the folder of a Hugging Face model")
        return _for_model_folder(artifact.absolute(), name, options)
    _refuse(options, _OF_FOLDERS, f"{artifact} is no folder of a Hugging Face model")
    main = weights_in(artifact) if artifact.is_dir() else artifact
    check_text(main)
    stated = {"options": dict(options)} if options else {}
    return {"name": name or _name_for(main.absolute()), "artifact": {"path": str(main.absolute()), **stated}}


def _refuse(options: Mapping[str, Any], unknown: frozenset[str], what: str) -> None:
    """Raise CallerError for an option that is for other artifacts."""
    for name in sorted(unknown & options.keys()):
        raise CallerError(f"{name} is nothing to state here: {what}; leave it out")


def _for_model_folder(folder: Path, name: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a Hugging Face model. Reads all its files for their digests. Raises as `manifest_for`."""
    converter, main = TransformersConverter(), main_of_model(folder)
    found = read_folder(main, with_code=bool(options.get("trust_remote_code")))
    task = task_in(found, options, tag=tag_of(folder))
    files = converter.files(main, options)
    for file in files:
        check_text(file)
    with ThreadPoolExecutor() as threads:
        digests = list(threads.map(_sha256, files))
    named = zip((str(file.relative_to(folder)) for file in files), digests, strict=True)
    architectures = found.config.get("architectures") or [""]
    return {
        "name": name or _name_for(main),
        "framework": {"name": "transformers"},
        "artifact": {
            "path": str(folder),
            "format": converter.format,
            "sha256": dict(sorted(named)),
            "options": {**options, "task": task},
        },
        "attributes": {"architecture": str(architectures[0]), "model_type": str(found.config.get("model_type", ""))},
    }


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    try:
        with file.open("rb") as opened:
            while piece := opened.read(_PIECE_BYTES):
                digest.update(piece)
    except OSError as error:
        raise CallerError(f"{file} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def check_text(path: Path) -> None:
    """Raise CallerError for a path that is no text in UTF-8, as manifests and messages are."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        raise CallerError(
            f"the path {str(path)!r} is not UTF-8, which names in manifests and messages are; rename the file or "
            "folder, or make a link with another name"
        ) from error


def spelled_alike(path: Path) -> str:
    """Return a hint at a file whose name looks the same in another normal form of Unicode; empty if there is none."""
    form = unicodedata.normalize("NFC", path.name)
    try:
        alike = [each.name for each in path.parent.iterdir() if unicodedata.normalize("NFC", each.name) == form]
    except OSError:
        return ""
    if not alike:
        return ""
    return f"; {alike[0]!a} is there, whose letters are written in another form of Unicode: name it as it is"


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
