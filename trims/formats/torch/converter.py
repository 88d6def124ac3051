"""PyTorch checkpoints: what `torch.save` wrote, zip or legacy, as a state dict or wrapped in a training checkpoint.

Converted by `torch.load` with `weights_only=True`, in a child. Tensors that share storage, place and shape stay tied.
Values that are no tensors, and the state of a training, are left out and named in the image's metadata under `ignored`;
a checkpoint with other tensors beside its state dict is refused. Sharded checkpoints are given by their index
(`pytorch_model.bin.index.json`). Quantized, sparse and
subclassed tensors are refused: their bytes alone do not make them again. A zip file whose tensors are dense is served
in place as well, without torch (`trims.formats.torch.converter`).

Options:
    allow_pickle: unpickle anything, which runs the file's code; a whole `nn.Module` then becomes a skeleton too.
    module: "package.module:function", called with `module_args` (a map), returns the `nn.Module` that the weights
        belong to; the image then carries it as a skeleton (`trims.formats.torch.skeleton`).
    ignore: glob patterns of tensors that need not belong to the module.
    state_key: which of the checkpoint's values is the state dict, where it lies under no usual name or there are
        several: a key, keys with dots between them, or a list of keys.
"""

from __future__ import annotations

import os
import pickle
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from trims.core.errors import ArtifactError, NotInPlaceError
from trims.formats.base import check_options
from trims.formats.shards import check_shards, is_index, names_of, refuse_shard, shard_files, weight_map
from trims.formats.torch.pickle import StoredTensor, read_pickle
from trims.formats.torch.refusals import explain, is_torchscript, saving_torchscript
from trims.formats.torch.state import StateDict, builder_of, key_of, metadata_of, select, state_dict
from trims.formats.torch.tensors import describe
from trims.formats.zip_members import DIRECTORY_BYTES, Member, stored_members
from trims.image.descriptors import explain_descriptors, lacks_descriptors
from trims.image.in_place import MAX_FILES
from trims.image.peek import PARSE_HERE_BYTES
from trims.image.plan import Contents, ImagePlan, SourceTensor, plan_image
from trims.image.source import FileSpan, SourceFile, open_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

    from trims.formats.base import Artifact
    from trims.formats.torch.state import Key
    from trims.image.program import Program


# PyTorch checkpoints in place: the tensors of a zip file that `torch.save` wrote, as spans of it.
#
# Members of such a file are stored, not compressed, and begin at multiples of 64 bytes. Read are its directory, the
# head of each member and the pickle; all three are small, and what is not is left to a conversion. Standard library
# only. Not covered: the legacy format, TorchScript, and tensors that are not dense.

#: Members without which torch refuses an archive.
_NEEDED = ("data.pkl", "version")


class _Found(NamedTuple):
    """Content of one file: its tensors, the same as described in it, and names of what was left out."""

    sources: list[SourceTensor]
    tensors: StateDict
    ignored: list[str]


def read_checkpoint(path: Path, key: Sequence[Key] | None = None) -> Contents:
    """Return the tensors of a checkpoint; `key` is where its state dict lies in it (`torch_state.key_of`).

    Raises NotInPlaceError for one that needs a conversion, or is broken.
    """
    found, _ = _contents(path, key, PARSE_HERE_BYTES, None)
    return Contents(found.sources, metadata=_metadata(found.ignored, found.tensors, path))


def read_shards(main: Path, key: Sequence[Key] | None = None) -> Contents:
    """Return the tensors of all shards of an index. What is read of them is as little together as of one checkpoint.

    Raises as `read_checkpoint`.
    """
    left = PARSE_HERE_BYTES - SourceFile.look(main).nbytes
    if left < 0:
        raise NotInPlaceError("its index is too large to be parsed here")
    expected = weight_map(main)
    shards = sorted(set(expected.values()))
    if len(shards) > MAX_FILES:
        raise NotInPlaceError(f"it has {len(shards)} shards; at most {MAX_FILES} are served in place")
    sources: list[SourceTensor] = []
    names: list[tuple[str, list[str]]] = []
    ignored: list[str] = []
    together = StateDict()
    for shard in shards:
        found, read = _contents(main.parent / shard, key, left, DIRECTORY_BYTES // len(shards))
        left -= read
        sources += found.sources
        names.append((shard, [source.name for source in found.sources]))
        ignored += [name for name in found.ignored if name not in ignored]
        together.join(found.tensors)
    check_shards(main, expected, names)
    return Contents(sources, metadata=_metadata(ignored, together, main))


def _contents(
    path: Path, key: Sequence[Key] | None, most_bytes: int, directory_bytes: int | None
) -> tuple[_Found, int]:
    """Return the tensors of one file, and how many bytes of pickle describe them.

    Args:
        most_bytes: A longer pickle is not read.
        directory_bytes: A longer zip directory is not read; None for the bound of one file.
    """
    file = SourceFile.look(path)
    with open_source(path) as fd:
        members = _members(fd, file.nbytes, directory_bytes)
        if missing := [name for name in _NEEDED if name not in members]:
            raise NotInPlaceError(f"it has no member {missing[0]}")
        loaded = read_pickle(_read(fd, members, "data.pkl", most_bytes))
        if "byteorder" in members and _read(fd, members, "byteorder") != b"little":
            raise NotInPlaceError("its numbers are not little endian")
        file.check(fd)
    try:
        tensors, ignored = state_dict(loaded, path, lambda value: isinstance(value, StoredTensor), key)
    except ArtifactError as error:  # which torch, too, has to report
        raise NotInPlaceError(str(error)) from error
    return _Found(_sources(tensors, members, file), tensors, ignored), members["data.pkl"].nbytes


def _metadata(ignored: Sequence[str], tensors: StateDict, path: Path) -> dict[str, str]:
    try:
        return metadata_of(ignored, tensors, path)
    except ArtifactError as error:  # which a conversion has to report
        raise NotInPlaceError(str(error)) from error


def is_stored(path: Path) -> bool:
    """Return whether each member of a zip file is stored as it is, where the directory says: then it may be mapped.

    Blocks for as long as the whole directory takes to parse. Raises ArtifactError for a file that cannot be read.
    """
    file = SourceFile.look(path)
    with open_source(path) as fd:
        try:
            _members(fd, file.nbytes, directory_bytes=DIRECTORY_BYTES + file.nbytes)
        except NotInPlaceError:
            return False
        return True


def _members(fd: int, nbytes: int, directory_bytes: int | None = None) -> dict[str, Member]:
    """Return the members by name, without the archive's own name, which all of them begin with."""
    stored = stored_members(fd, nbytes, directory_bytes=directory_bytes)
    found = {name.partition("/")[2]: member for name, member in stored.items()}
    if len(found) < len(stored):
        raise NotInPlaceError("two of its members have one name")
    return found


def _read(fd: int, members: Mapping[str, Member], name: str, most_bytes: int = PARSE_HERE_BYTES) -> bytes:
    member = members[name]
    if member.nbytes > most_bytes:
        raise NotInPlaceError(f"its member {name} is too large to be parsed here")
    return os.pread(fd, member.nbytes, member.offset)


def _sources(
    tensors: Mapping[str, StoredTensor], members: Mapping[str, Member], file: SourceFile
) -> list[SourceTensor]:
    """Return the tensors as spans; the second of two that begin at the same byte is tied to the first."""
    owners: dict[int, tuple[str, int]] = {}
    found = []
    for name, tensor in tensors.items():
        member = members.get(f"data/{tensor.storage}")
        if member is None or not tensor.dense or tensor.begin + tensor.nbytes > member.nbytes:
            raise NotInPlaceError(f"tensor {name!r} is not dense, or its bytes are missing")
        at, nbytes = member.offset + tensor.begin, tensor.nbytes
        owner, owned_bytes = owners.setdefault(at, (name, nbytes)) if nbytes else (name, 0)
        tied_to = owner if owner != name and owned_bytes >= nbytes else None
        span = None if tied_to else FileSpan(file, at)
        found.append(SourceTensor(name, tensor.dtype, tensor.shape, tied_to=tied_to, span=span))
    return found


_OPTIONS = ("module", "module_args", "ignore", "state_key")
_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")
_ZIP_MAGIC = b"PK\x03\x04"
#: First bytes of `torch.save`'s legacy format: its magic number, pickled with protocol 2.
_LEGACY_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


class TorchConverter:
    """See the module."""

    format: ClassVar[str] = "torch"
    version: ClassVar[int] = 3
    host_specific: ClassVar[bool] = False

    def needs_child(self, options: Mapping[str, Any]) -> bool:
        """Return True: the converter imports torch."""
        del options
        return True

    def frameworks(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return torch and transformers for a skeleton, which belongs to their versions; plain tensors do not."""
        return ("torch", "transformers") if "module" in options or options.get("allow_pickle") else ()

    def claims(self, main: Path, first_bytes: bytes) -> bool:
        """Return whether the file has the legacy magic number, is a zip file of the right name, or a shard index."""
        if _is_index(main) or first_bytes.startswith(_LEGACY_MAGIC):
            return True
        names_torch = b"/data.pkl" in first_bytes[:512] or b"/.format_version" in first_bytes[:512]
        return first_bytes.startswith(_ZIP_MAGIC) and (names_torch or main.suffix in _SUFFIXES)

    def files(self, main: Path, options: Mapping[str, Any]) -> tuple[Path, ...]:
        """Return the one file, or the index and its shards."""
        _check(main, options)
        if _is_index(main):
            return shard_files(type(self), main, options)
        SourceFile.look(main)
        refuse_shard(main)
        return (main,)

    def names_here(self, main: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the shards of an index, parsed in this process whatever its size."""
        del options
        return names_of(main)

    def plan(self, artifact: Artifact) -> ImagePlan:
        """Load the checkpoint, memory-mapped where its format allows."""
        main, options = artifact.files[0], artifact.options
        key = _check(main, options)
        files, module = tuple(SourceFile.look(path) for path in artifact.files), None
        if _is_index(main):
            sources, tensors, ignored = _read_shards(main, options)
        else:
            loaded = _load(main, options)
            module, tensors, ignored = _weights_in(loaded, main, key)
            sources = describe(tensors, main)
        program: Program | None = None
        if module is not None:
            from trims.formats.torch.skeleton import skeleton_of_module

            sources, program = skeleton_of_module(sources, main, module, options)
        elif "module" in options:
            from trims.formats.torch.skeleton import add_skeleton

            sources, program = add_skeleton(sources, artifact, lambda: tensors, lambda: read_tensors(artifact))
        return plan_image(sources, program=program, metadata=metadata_of(ignored, tensors, main), files=files)

    def may_be_in_place(self, options: Mapping[str, Any]) -> bool:
        """Return True: a session can build the module that has no skeleton yet."""
        del options
        return True

    def contents(self, artifact: Artifact) -> Contents:
        """Return the contents that the zip file's directory and its pickle describe, read without torch."""
        main = artifact.files[0]
        key = _check(main, artifact.options)
        found = read_shards(main, key) if _is_index(main) else read_checkpoint(main, key)
        return replace(found, program=builder_of(artifact))


def _is_index(main: Path) -> bool:
    return is_index(main, ".bin")


def _check(main: Path, options: Mapping[str, Any]) -> tuple[Key, ...] | None:
    """Return the state key. Raises ArtifactError for options that are unknown or wrong."""
    check_options(main, options, _OPTIONS)
    return key_of(options, main)


def _read_shards(main: Path, options: Mapping[str, Any]) -> tuple[list[SourceTensor], StateDict, list[str]]:
    """Return the tensors of all shards of an index, described and as they are, and the names of what was left out."""
    expected, key = weight_map(main), key_of(options, main)
    sources: list[SourceTensor] = []
    together = StateDict()
    names: list[tuple[str, list[str]]] = []
    ignored: list[str] = []
    for shard in sorted(set(expected.values())):
        path = main.parent / shard
        tensors, left = state_dict(_load(path, options), path, _is_tensor, key)
        names.append((shard, list(tensors)))
        sources += describe(tensors, path)
        together.join(tensors)
        ignored += [name for name in left if name not in ignored]
    check_shards(main, expected, names)
    return sources, together, ignored


def read_tensors(artifact: Artifact) -> StateDict:
    """Return the tensors of a checkpoint, or of all its shards, by name. Raises ArtifactError."""
    main, options = artifact.files[0], artifact.options
    shards = [main.parent / name for name in names_of(main)] if _is_index(main) else [main]
    found = StateDict()
    names: list[tuple[str, list[str]]] = []
    for path in shards:
        tensors, _ = state_dict(_load(path, options), path, _is_tensor, key_of(options, main))
        names.append((path.name, list(tensors)))
        found.join(tensors)
    if _is_index(main):
        check_shards(main, weight_map(main), names)
    return found


def _weights_in(
    loaded: Any, path: Path, key: Sequence[Key] | None
) -> tuple[torch.nn.Module | None, StateDict, list[str]]:
    """Return the module, if the checkpoint or the value under the key is one, its tensors, and what was left out."""
    chosen, beside = (loaded, []) if key is None else select(loaded, path, key)
    if (module := _as_module(chosen)) is not None:
        tensors, ignored = state_dict(module.state_dict(), path, _is_tensor)
        return module, tensors, [*beside, *ignored]
    return None, *state_dict(loaded, path, _is_tensor, key, lambda value: _as_module(value) is not None)


#: Codes with which torch colours its messages.
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def _load(path: Path, options: Mapping[str, Any]) -> Any:
    import torch

    allow_pickle = bool(options.get("allow_pickle", False))
    if is_torchscript(path):
        raise ArtifactError(f"{path}: {saving_torchscript(path)}")
    with path.open("rb") as file:
        is_zip = file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC
    try:
        # A mapping gives the bytes as they lie there: torch inflates nothing in it, and looks at no member's head.
        return torch.load(path, map_location="cpu", weights_only=not allow_pickle, mmap=is_zip and is_stored(path))
    except pickle.UnpicklingError as error:
        said = _TERMINAL_CODES.sub("", str(error))
        if allow_pickle:
            raise ArtifactError(f"{path}: it cannot be unpickled: {said}"[:2000]) from error
        raise ArtifactError(
            f"{path}: not a checkpoint of tensors only: {explain(path, said)}; or let the file's code run in the "
            "converter (artifact.allow_pickle: true in a manifest)"
        ) from error
    except MemoryError:
        raise
    except (RuntimeError, EOFError, KeyError, ValueError, AttributeError, IndexError, TypeError, OSError) as error:
        if isinstance(error, OSError) and lacks_descriptors(error):
            raise explain_descriptors(error) from error
        told = _TERMINAL_CODES.sub("", f"{path}: torch cannot read it: {type(error).__name__}: {error}")
        raise ArtifactError(told[:2000]) from error


def _as_module(loaded: Any) -> torch.nn.Module | None:
    import torch

    return loaded if isinstance(loaded, torch.nn.Module) else None


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
