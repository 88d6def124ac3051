"""Files of a folder in which Hugging Face's libraries keep a model: weights, and what describes them.

Read are `config.json`, one set of weights (safetensors before PyTorch's pickled files, an index before its shards),
files of tokenizers, image processors and feature extractors, `generation_config.json`, and what `modules.json` of
sentence-transformers names. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactError, ArtifactNotFoundError, CallerError, NotSupportedError
from trims.core.units import format_bytes
from trims.formats.folders import weights_in
from trims.formats.foreign import describe_failed_download, first_bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

CONFIG, MODULES, GENERATION_CONFIG = "config.json", "modules.json", "generation_config.json"
#: Formats of weights that a module can be made of, by the end of the file's name.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".index.json")
_INDEX = re.compile(r"\.index(\.[^./]+)?\.json\Z")
#: Names of files beside the weights that libraries read: configurations, tokenizers, processors, chat templates.
_DESCRIBING = re.compile(
    r".+\.(json|jinja|model|tiktoken|spm|vocab|bpe|codes)\Z|(vocab|merges|.*vocab.*|added_tokens|dict)\.txt\Z"
)
#: Names that match and are none of them.
_OTHER = re.compile(
    r"(trainer_state|training_args|all_results|eval_results|train_results|data_config|model_index)\.json\Z"
)
_CODE = re.compile(r"[A-Za-z_]\w*\.py\Z")
#: Limits of what describes a model: the largest tokenizers have some 50 MB.
_MOST_FILES, _MOST_BYTES, _MOST_CONFIG_BYTES, _MOST_MODULES = 64, 256 << 20, 16 << 20, 32
#: Weights of a module of sentence-transformers beside the transformer, such as a dense layer, best first.
_MODULE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Files of a model's folder.

    Attributes:
        path: The folder.
        config: `config.json`, read.
        weights: File with the weights, or their index.
        describing: All other files that the model is made from, by their names in the folder.
        embeds: `modules.json` makes one embedding of each text.
    """

    path: Path
    config: Mapping[str, Any]
    weights: Path
    describing: Mapping[str, Path]
    embeds: bool

    def read(self) -> dict[str, bytes]:
        """Return the content of all describing files by name. Raises ArtifactError."""
        return {name: _content(path) for name, path in self.describing.items()}


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder holds a model of Hugging Face's libraries, with weights that a module can be made of.

    Raises ArtifactError for a `config.json` that is there and no JSON object.
    """
    if not os.path.lexists(folder / CONFIG):
        return False
    config = read_config(folder / CONFIG)
    try:
        weights = weights_in(folder)
    except (ArtifactError, CallerError):
        return False
    return _names_model(config) and weights.name.endswith(_WEIGHTS)


def main_in(folder: Path) -> Path:
    """Return the file by which a model's folder is opened: `config.json` of a Hugging Face model, else the weights.

    Raises CallerError for a folder without weights, or with several files that may be meant; ArtifactError for a
    `config.json` that is none.
    """
    return folder / CONFIG if is_model_folder(folder) else weights_in(folder)


def _names_model(config: Mapping[str, Any]) -> bool:
    return isinstance(config.get("model_type"), str) or isinstance(config.get("architectures"), list)


def read_folder(config: Path, weights: str = "", *, with_code: bool = False) -> ModelFolder:
    """Look at the folder of a `config.json`.

    Args:
        config: That file.
        weights: Name of the file with the weights, where a folder has several; empty to choose.
        with_code: Python files of the folder belong to the model.

    Raises ArtifactError, ArtifactNotFoundError for what is missing, CallerError where several weights may be meant.
    """
    folder = config.parent
    if not config.is_file():
        raise ArtifactNotFoundError(f"{config} is not a file; a folder of a Hugging Face model has one")
    modules = _modules(folder)
    found = {CONFIG: config, **dict(_describing(folder, with_code))}
    for module in modules:
        found.update(_of_module(folder, module))
    _check_sizes(folder, found)
    if GENERATION_CONFIG in found:
        read_config(found[GENERATION_CONFIG])  # the library's own words name a copy that is gone by then
    chosen = folder / weights if weights else weights_in(folder)
    if not chosen.is_file():
        raise ArtifactNotFoundError(f"{chosen} is not a file; correct the option weights")
    return ModelFolder(folder, read_config(config), chosen, dict(sorted(found.items())), bool(modules))


def read_config(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises ArtifactError."""
    content = _content_of_config(path)
    if (download := describe_failed_download(content[:4096])) is not None:
        raise ArtifactError(f"{path} is {download}")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ArtifactError(f"{path} is a JSON {type(found).__name__}; a configuration is an object")
    return found


def _content_of_config(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # to open a FIFO may wait forever
            raise ArtifactError(f"{path} is no regular file; put the configuration there, or take it away")
        if status.st_size > _MOST_CONFIG_BYTES:
            raise ArtifactError(f"{path}: {format_bytes(status.st_size)} are too many for a configuration")
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error


def _describing(folder: Path, with_code: bool) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.iterdir()):
        name = path.name
        wanted = _DESCRIBING.match(name) and not (_INDEX.search(name) or _OTHER.match(name))
        if wanted or (with_code and _CODE.match(name)):
            if path.is_symlink() and not path.exists():
                raise ArtifactNotFoundError(
                    f"{path} is a link to {path.readlink()}, which is not there: fetch the model again"
                )
            if path.is_file():
                yield name, path


def _modules(folder: Path) -> list[str]:
    """Return the folders that `modules.json` names beside the transformer's. Raises ArtifactError."""
    path = folder / MODULES
    if not path.is_file():
        return []
    try:
        listed = json.loads(path.read_bytes())
        names = [str(each["path"]).strip("/") for each in listed]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArtifactError(f"{path} is no list of modules: {error!r:.200}") from error
    if not 0 < len(names) <= _MOST_MODULES:
        raise ArtifactError(f"{path} names {len(names)} modules; a model has 1 to {_MOST_MODULES}")
    for name in names:
        if name.startswith(("/", "~")) or ".." in name.split("/"):
            raise ArtifactError(f"{path} names the module {name!r:.100}, which leaves the folder")
    if names[0]:
        raise NotSupportedError(
            f"{path}: the transformer lies in {names[0]!r}, not beside it: name its folder, {folder / names[0]}"
        )
    return names[1:]


def _of_module(folder: Path, module: str) -> Iterator[tuple[str, Path]]:
    place = folder / module
    if not place.is_dir():
        return  # a module without files, such as Normalize
    weights = next((name for name in _MODULE_WEIGHTS if (place / name).is_file()), None)
    for name in (CONFIG, weights):
        if name is not None and (place / name).is_file():
            yield f"{module}/{name}", place / name


def _check_sizes(folder: Path, found: Mapping[str, Path]) -> None:
    sizes = {name: path.stat().st_size for name, path in found.items()}
    if len(sizes) > _MOST_FILES or sum(sizes.values()) > _MOST_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ArtifactError(
            f"{folder}: {len(sizes)} files of {format_bytes(sum(sizes.values()))} describe the model (largest: "
            f"{largest}), and at most {_MOST_FILES} files of {format_bytes(_MOST_BYTES)} may"
        )


def _content(path: Path) -> bytes:
    if (download := describe_failed_download(first_bytes_of(path))) is not None:
        raise ArtifactError(f"{path} is {download}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error
