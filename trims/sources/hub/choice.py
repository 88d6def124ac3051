"""Choice of a model's files among those of a repository of the hub: one set of weights, and what describes it.

A repository often has the same weights several times: for each framework, in each precision. One set is chosen:
safetensors before PyTorch's pickled files before one ONNX model; without a variant before one with. Some files name
others: an index names shards, `modules.json` names folders. Such a file has to be read before the choice is complete.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trims.core.errors import ArtifactError, ArtifactNotFoundError, NotSupportedError
from trims.manifests.adapters import ADAPTER, adapter_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_MODULES = "modules.json"
#: Folders that `modules.json` may name.
_MOST_MODULES = 64
#: Names of weights without their ending, best first, and whether a repository may name them as it likes.
_STEMS = {
    ".safetensors": ("model", "diffusion_pytorch_model", "adapter_model", "consolidated"),
    ".bin": ("pytorch_model", "diffusion_pytorch_model", "adapter_model", "model"),
}
_FREE_NAMES = frozenset({".safetensors"})
_ONNX = ("model.onnx", "onnx/model.onnx")
#: Endings under which an ONNX model keeps its tensors beside it, behind its own name.
_ONNX_DATA = re.compile(r"(_data|\.data)(_\d+)?\Z")
_INDEX = re.compile(r".+\.(safetensors|bin)\.index(\.[^./]+)?\.json\Z")
_SHARD = re.compile(r"(?P<stem>.+)-\d+-of-\d+\Z")
_ANY_INDEX = re.compile(r"\.index(\.[^./]+)?\.json\Z")
#: Configuration, tokenizers and processors beside the weights.
_DESCRIBING = re.compile(
    r"[^/]+\.(json|jinja|model|tiktoken|spm|vocab|bpe)\Z|(vocab|merges|[^/]*vocab[^/]*|bpe\.codes|added_tokens)\.txt\Z"
    r"|additional_chat_templates/[^/]+\.jinja\Z"
)
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Selection:
    """Files of a repository that a model needs, as far as they are known.

    Attributes:
        files: Paths in the repository, in their order.
        unread: Known files that name others, and have to be read first (`read`).
    """

    files: tuple[str, ...]
    unread: tuple[str, ...]
    _names: frozenset[str]
    _stray: str = ""

    def read(self, name: str, content: bytes) -> Selection:
        """Return the selection with what a file of `unread` names.

        Raises ArtifactError for content that names nothing, ArtifactNotFoundError for files that are not there.
        """
        folder, _, last = name.rpartition("/")
        if last == _MODULES:
            more = _of_modules(self._names, folder, _modules(name, content))
        else:
            more = _Found(_shards(self._names, folder, name, content), ())
        return replace(
            self,
            files=tuple(sorted({*self.files, *more.files})),
            unread=(*(each for each in self.unread if each != name), *(set(more.unread) - {*self.unread, name})),
        )

    def check(self) -> None:
        """Raise NotSupportedError if everything was read and there are no weights."""
        if self._stray and not self.unread and not any(_is_weights(name) for name in self.files):
            raise NotSupportedError(self._stray)


def wanted(files: Iterable[str], path: str = "") -> Selection:
    """Choose the files that a model needs.

    Args:
        files: Paths of all files of the repository.
        path: A file: that one and what it names. A folder: the model in it. Empty: the model of the repository.

    Raises:
        ArtifactNotFoundError: There is no such path.
        NotSupportedError: There are no weights that trims reads, or several of one rank; the message names them.
    """
    names = frozenset(files)
    if path in names:
        chosen = _of_file(names, path)
        return Selection(tuple(sorted(chosen.files)), chosen.unread, names)
    if path and not any(name.startswith(f"{path}/") for name in names):
        raise ArtifactNotFoundError(f"the repository has no file and no folder {path!r:.200}{_near(names, path)}")
    chosen = _of_folder(names, path)
    modules = _join(path, _MODULES)
    unread = (*chosen.unread, *([modules] if modules in names else []))
    stray = "" if any(map(_is_weights, chosen.files)) or chosen.unread else _no_weights(names, path)
    if stray and not unread:
        raise NotSupportedError(stray)
    return Selection(tuple(sorted(chosen.files)), unread, names, stray)


def complete(selection: Selection, read: Callable[[str], bytes]) -> Selection:
    """Return a selection with all that its files name. Raises as `Selection.read`, and what `read` raises."""
    while selection.unread:
        name = selection.unread[0]
        selection = selection.read(name, read(name))
    selection.check()
    return selection


@dataclass(frozen=True, slots=True)
class _Found:
    files: tuple[str, ...]
    unread: tuple[str, ...]


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _is_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", ".onnx"))


def _of_file(names: frozenset[str], path: str) -> _Found:
    """Return a file that the user named, and what belongs to it by its name."""
    data = tuple(name for name in names if name.startswith(path) and _ONNX_DATA.fullmatch(name[len(path) :]))
    return _Found((path, *(data if path.endswith(".onnx") else ())), (path,) if _INDEX.match(path) else ())


def _of_folder(names: frozenset[str], folder: str) -> _Found:
    """Return weights of a folder, if it has some, and the files beside them that describe them."""
    start = f"{folder}/" if folder else ""
    here = sorted(name[len(start) :] for name in names if name.startswith(start))
    weights = _weights(here, folder)
    if ADAPTER in here and any(name.startswith("adapter_model") for name in weights.files):
        raise NotSupportedError(adapter_words(f"the repository{f' in {folder}' if folder else ''}"))
    about = [name for name in here if _DESCRIBING.match(name) and not _ANY_INDEX.search(name)]
    return _Found(
        tuple(_join(folder, name) for name in {*weights.files, *about}),
        tuple(_join(folder, name) for name in weights.unread),
    )


def _weights(here: Sequence[str], folder: str) -> _Found:
    plain = [name for name in here if "/" not in name]
    for ending, stems in _STEMS.items():
        for stem in stems:
            if found := _of_stem(plain, stem, ending, folder):
                return found
        if ending in _FREE_NAMES and (found := _of_any_stem(plain, ending, folder)):
            return found
    for name in _ONNX:
        if name in here:
            return _of_file(frozenset(here), name)
    return _Found((), ())


def _of_stem(plain: Sequence[str], stem: str, ending: str, folder: str) -> _Found | None:
    """Return the weights of a name: without a variant if they are there, else with the only variant."""
    single, index = stem + ending, f"{stem}{ending}.index.json"
    if single in plain:
        return _Found((single,), ())
    if index in plain:
        return _Found((index,), (index,))
    shards = tuple(name for name in plain if re.fullmatch(rf"{re.escape(stem)}-\d+-of-\d+{re.escape(ending)}", name))
    if shards:
        return _Found(shards, ())
    variants = [
        name
        for name in plain
        if re.fullmatch(
            rf"{re.escape(stem + ending)}\.index\.[^.]+\.json|{re.escape(stem)}\.[^.]+{re.escape(ending)}", name
        )
        and not _SHARD.match(name.removesuffix(ending))
    ]
    return _only(variants, folder) if variants else None


def _of_any_stem(plain: Sequence[str], ending: str, folder: str) -> _Found | None:
    """Return weights under a name of the repository's own, if it has only these."""
    indexes = [name for name in plain if name.endswith(f"{ending}.index.json")]
    if indexes:
        return _only(indexes, folder)
    files = [name for name in plain if name.endswith(ending)]
    stems = {found["stem"] if (found := _SHARD.match(name.removesuffix(ending))) else name for name in files}
    if len(stems) == 1:
        return _Found(tuple(files), ())
    return _only(files, folder) if files else None


def _only(names: Sequence[str], folder: str) -> _Found:
    if len(names) > 1:
        shown = ", ".join(_join(folder, name) for name in sorted(names)[:_SHOWN])
        raise NotSupportedError(
            f"the repository has {len(names)} sets of weights of one rank ({shown}): write the path of one "
            "behind its name"
        )
    return _Found(tuple(names), tuple(name for name in names if _INDEX.match(name)))


def _of_modules(names: frozenset[str], folder: str, modules: Iterable[str]) -> _Found:
    files: set[str] = set()
    unread: set[str] = set()
    for module in modules:
        found = _of_folder(names, _join(folder, module))
        files.update(found.files)
        unread.update(found.unread)
    return _Found(tuple(files), tuple(sorted(unread)))


def _modules(name: str, content: bytes) -> list[str]:
    """Return the folders that `modules.json` names. Raises ArtifactError if it is none."""
    try:
        paths = [each.get("path", "") for each in json.loads(content)]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{name} is no list of modules: {error}") from error
    if len(paths) > _MOST_MODULES or not all(isinstance(path, str) for path in paths):
        raise ArtifactError(f"{name} names more than {_MOST_MODULES} modules, or one without a folder")
    return [path.strip("/") for path in paths if path.strip("/")]


def _shards(names: frozenset[str], folder: str, index: str, content: bytes) -> tuple[str, ...]:
    """Return the shards that an index names. Raises ArtifactError if it is none."""
    try:
        named = set(json.loads(content)["weight_map"].values())
        if not all(isinstance(shard, str) for shard in named):
            raise TypeError("weight_map names something else than files")
        shards = {_join(folder, shard) for shard in named}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{index} is no index of shards: {error!r:.200}") from error
    missing = sorted(shards - names)
    if missing or not shards:
        shown = ", ".join(missing[:_SHOWN]) or "nothing"
        raise ArtifactNotFoundError(f"{index} names {shown}, which the repository does not have")
    return tuple(shards)


def _no_weights(names: frozenset[str], path: str) -> str:
    large = sorted(name for name in names if name.startswith(path) and not name.endswith((".json", ".txt", ".md")))
    shown = f"; it has {', '.join(large[:_SHOWN])}" if large else ""
    return (
        "the repository has no weights of a known name (safetensors, pytorch_model.bin, model.onnx)"
        f"{f' in {path}' if path else ''}{shown}: write the path of a file behind its name"
    )


def _near(names: frozenset[str], path: str) -> str:
    last = path.rpartition("/")[2].lower()
    near = sorted(name for name in names if name.rpartition("/")[2].lower() == last)
    return f"; it has {', '.join(near[:_SHOWN])}" if near else ""
