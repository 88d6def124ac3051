"""PyTorch checkpoints in place: the tensors of a zip file that `torch.save` wrote, as spans of it.

Members of such a file are stored, not compressed, and begin at multiples of 64 bytes. Read are its directory, the
head of each member and the pickle; all three are small, and what is not is left to a conversion. Standard library
only. Not covered: the legacy format, TorchScript, and tensors that are not dense.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from trims.core.errors import ArtifactError, NotInPlaceError
from trims.formats.shards import check_shards, weight_map
from trims.formats.torch.pickle import StoredTensor, read_pickle
from trims.formats.torch.state import StateDict, metadata_of, state_dict
from trims.formats.zip_members import DIRECTORY_BYTES, Member, stored_members
from trims.image.in_place import MAX_FILES
from trims.image.peek import PARSE_HERE_BYTES
from trims.image.plan import Contents, SourceTensor
from trims.image.source import FileSpan, SourceFile, open_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trims.formats.torch.state import Key

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
        path: The file.
        key: See `read_checkpoint`.
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
