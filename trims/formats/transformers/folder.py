"""Files of a folder in which Hugging Face's libraries keep a model: weights, and what describes them.

Read are `config.json`, one set of weights (safetensors before PyTorch's pickled files, an index before its shards),
files of tokenizers, image processors and feature extractors, `generation_config.json`, and what `modules.json` of
sentence-transformers names: the first module may lie in a folder of its own, and need no `config.json`. Standard
library only.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactError, ArtifactNotFoundError, CallerError
from trims.core.units import format_bytes
from trims.formats.folders import weights_in
from trims.formats.foreign import describe_failed_download, first_bytes_of
from trims.manifests.sentence_modules import MODULE_WEIGHTS, MODULES, PROMPTS, STATIC, listed_modules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
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
#: Names of describing files in which transformers reads no byte order mark.
_WITHOUT_MARK = re.compile(
    r"((generation_|tokenizer_|preprocessor_|processor_)?config|tokenizer|special_tokens_map|added_tokens)\.json\Z"
)
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CODE = re.compile(r"[A-Za-z_]\w*\.py\Z")
#: Files that say which modules of sentence-transformers there are, and how they are set.
_OF_MODULES = re.compile(r"(modules|config_sentence_transformers|sentence_[a-z-]+_config|.+/config)\.json\Z")
#: Limits of what describes a model: the largest tokenizers have some 50 MB.
_MOST_FILES, _MOST_BYTES, _MOST_CONFIG_BYTES, _MOST_MODULES = 64, 256 << 20, 16 << 20, 32


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Files of a model's folder.

    Attributes:
        config: `config.json`, read; empty for a model without, which has no transformer.
        weights: File with the weights, or their index.
        describing: All other files that the model is made from, by their names in the model: those of the first module
            of `modules.json` have no folder.
        embeds: `modules.json` makes one embedding of each text.
    """

    path: Path
    config: Mapping[str, Any]
    weights: Path
    describing: Mapping[str, Path]
    embeds: bool

    def read(self) -> dict[str, bytes]:
        """Return the content of all describing files by name. Raises ArtifactError."""
        return {name: _content(path, name) for name, path in self.describing.items()}

    def read_lists(self) -> dict[str, bytes]:
        """Return, as `read`, the files that say which modules of sentence-transformers there are."""
        wanted = (name for name in self.describing if name != CONFIG and _OF_MODULES.match(name))
        return {name: _content(self.describing[name], name) for name in wanted}


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder holds a model of Hugging Face's libraries, with weights that a module can be made of.

    Raises ArtifactError for a `config.json` that is there and no JSON object, or a `modules.json` that is no list.
    """
    config = read_config(folder / CONFIG) if os.path.lexists(folder / CONFIG) else {}
    modules = _modules(folder)
    if not modules and not _names_model(config):
        return False
    place = _place(folder, modules)
    try:
        return weights_in(place).name.endswith(_WEIGHTS)
    except (ArtifactError, CallerError):
        return False


def main_in(folder: Path) -> Path:
    """Return the file by which a model's folder is opened: that of `main_of_model`, else the weights.

    Raises CallerError for a folder without weights, or with several files that may be meant; ArtifactError for a
    `config.json` or `modules.json` that is none; NotSupportedError for a folder with an adapter.
    """
    return main_of_model(folder) if is_model_folder(folder) else weights_in(folder)


def main_of_model(folder: Path) -> Path:
    """Return the file by which the folder of a Hugging Face model is opened: `config.json`, else `modules.json`."""
    return folder / (CONFIG if os.path.lexists(folder / CONFIG) else MODULES)


def _names_model(config: Mapping[str, Any]) -> bool:
    return isinstance(config.get("model_type"), str) or isinstance(config.get("architectures"), list)


def read_folder(main: Path, weights: str = "", *, with_code: bool = False) -> ModelFolder:
    """Look at the folder of a `config.json`, or of a `modules.json` without one beside it.

    Args:
        weights: Name of the file with the weights, where a folder has several; empty to choose.
        with_code: Python files of the folder belong to the model.

    Raises ArtifactError, ArtifactNotFoundError for what is missing, CallerError where several weights may be meant,
    NotSupportedError for a folder with an adapter.
    """
    folder = main.parent
    if not main.is_file():
        raise ArtifactNotFoundError(f"{main} is not a file; a folder of a Hugging Face model has one")
    modules = _modules(folder)
    place = _place(folder, modules)
    found = dict(_describing(place, with_code))
    if place != folder:
        found.update((name, folder / name) for name in (MODULES, PROMPTS) if (folder / name).is_file())
    for _, module in modules[1:]:
        found.update(_of_module(folder, module))
    _check_sizes(folder, found)
    if GENERATION_CONFIG in found:
        read_config(found[GENERATION_CONFIG])  # the library's own words name a copy that is gone by then
    static = bool(modules) and modules[0][0] == STATIC
    if CONFIG not in found and not static:
        raise ArtifactNotFoundError(f"{place / CONFIG} is not a file; the folder of a transformer has one")
    chosen = place / weights if weights else weights_in(place)
    if not chosen.is_file():
        raise ArtifactNotFoundError(f"{chosen} is not a file; correct the option weights")
    config = read_config(found[CONFIG]) if CONFIG in found else {}
    if not static and not isinstance(config.get("model_type"), str) and "auto_map" not in config:
        raise ArtifactError(
            f"{found[CONFIG]} has no model_type, by which transformers chooses the architecture; add it, such as "
            '"model_type": "bert"'
        )
    return ModelFolder(folder, config, chosen, dict(sorted(found.items())), static or len(modules) > 1)


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


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Return kind and folder of each module of `modules.json`; none without that. Raises ArtifactError."""
    path = folder / MODULES
    if not path.is_file():
        return []
    listed = listed_modules(_content_of_config(path), str(path))
    if not 0 < len(listed) <= _MOST_MODULES:
        raise ArtifactError(f"{path} names {len(listed)} modules; a model has 1 to {_MOST_MODULES}")
    for _, name in listed:
        if name.startswith(("/", "~")) or ".." in name.split("/"):
            raise ArtifactError(f"{path} names the module {name!r:.100}, which leaves the folder")
    return listed


def _place(folder: Path, modules: Sequence[tuple[str, str]]) -> Path:
    """Return the folder with the weights, which is that of the first module. Raises ArtifactNotFoundError."""
    place = folder / modules[0][1] if modules else folder
    if not place.is_dir():
        raise ArtifactNotFoundError(f"{folder / MODULES} names the module {place}, which is no folder: fetch it")
    return place


def _of_module(folder: Path, module: str) -> Iterator[tuple[str, Path]]:
    place = folder / module
    if not place.is_dir():
        return  # a module without files, such as Normalize
    weights = next((name for name in MODULE_WEIGHTS if (place / name).is_file()), None)
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


def _content(path: Path, name: str) -> bytes:
    """Return the content of a describing file with its name in the model. Raises ArtifactError."""
    begins = first_bytes_of(path)
    if (download := describe_failed_download(begins)) is not None:
        raise ArtifactError(f"{path} is {download}")
    if begins.startswith(_MARKS) and _WITHOUT_MARK.match(name):
        raise ArtifactError(
            f"{path} begins with a byte order mark (BOM), which transformers does not read; save it as UTF-8 without "
            "that"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error
