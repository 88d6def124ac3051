"""PyTorch checkpoints in place: the tensors of a zip file that `torch.save` wrote, as spans of it.

Members of such a file are stored, not compressed, and begin at multiples of 64 bytes. Read are its directory, the
head of each member and the pickle; all three are small, and what is not is left to a conversion. Standard library
only. Not covered: the legacy format, TorchScript, and tensors that are not dense.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from typing import TYPE_CHECKING, NamedTuple

from trims.core.errors import ArtifactError, NotInPlaceError
from trims.formats.torch_pickle import StoredTensor, read_pickle
from trims.formats.torch_state import metadata_of, state_dict
from trims.image.look import PARSE_HERE_BYTES
from trims.image.plan import Contents, SourceTensor
from trims.image.source import FileSpan, SourceFile, open_source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 0x1
#: Of a directory: it is parsed faster than a pickle, and says as much again.
_DIRECTORY_BYTES = 2 * PARSE_HERE_BYTES


class _Member(NamedTuple):
    """Bytes of the zip file that are a member's."""

    offset: int
    nbytes: int


def read_checkpoint(path: Path) -> Contents:
    """The tensors of a checkpoint. Raises NotInPlaceError for one that needs a conversion, or is broken."""
    file = SourceFile.look(path)
    with open_source(path) as fd:
        members = _members(fd, file.nbytes)
        loaded = read_pickle(_read(fd, members, "data.pkl"))
        if "byteorder" in members and _read(fd, members, "byteorder") != b"little":
            raise NotInPlaceError("its numbers are not little endian")
        file.check(fd)
    try:
        tensors, ignored = state_dict(loaded, path, lambda value: isinstance(value, StoredTensor))
    except ArtifactError as error:  # which torch, too, has to tell
        raise NotInPlaceError(str(error)) from error
    return Contents(_sources(tensors, members, file), metadata=metadata_of(ignored))


def _members(fd: int, nbytes: int) -> dict[str, _Member]:
    """By their names without the archive's own, which all of them begin with."""
    try:
        with zipfile.ZipFile(_Tail(fd, nbytes)) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise NotInPlaceError(f"its zip directory cannot be read here: {error}") from error
    found: dict[str, _Member] = {}
    for info in infos:
        _, _, name = info.filename.partition("/")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED or name in found:
            raise NotInPlaceError(f"member {info.filename!r} is packed, or there twice")
        found[name] = _located(fd, info, nbytes)
    return found


def _located(fd: int, info: zipfile.ZipInfo, nbytes: int) -> _Member:
    # A directory may claim any offset, below zero and above what the kernel takes too.
    head = os.pread(fd, _LOCAL_HEADER.size, info.header_offset) if 0 <= info.header_offset < nbytes else b""
    if len(head) < _LOCAL_HEADER.size or not head.startswith(_LOCAL_MAGIC):
        raise NotInPlaceError(f"member {info.filename!r} is not where the directory says")
    _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(head)
    member = _Member(info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes, info.file_size)
    if member.offset + member.nbytes > nbytes:
        raise NotInPlaceError(f"member {info.filename!r} ends behind the file")
    return member


def _read(fd: int, members: Mapping[str, _Member], name: str) -> bytes:
    member = members.get(name)
    if member is None:
        raise NotInPlaceError(f"it has no member {name}")
    if member.nbytes > PARSE_HERE_BYTES:
        raise NotInPlaceError(f"its member {name} is too large to be parsed here")
    return os.pread(fd, member.nbytes, member.offset)


def _sources(
    tensors: Mapping[str, StoredTensor], members: Mapping[str, _Member], file: SourceFile
) -> list[SourceTensor]:
    """As spans; the second of two that begin at the same byte is tied to the first."""
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


class _Tail(io.RawIOBase):
    """A file for `zipfile`, of which no more is read than a directory may have."""

    def __init__(self, fd: int, nbytes: int) -> None:
        super().__init__()
        self._fd = fd
        self._nbytes = nbytes
        self._at = 0
        self._left = _DIRECTORY_BYTES

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._nbytes}[whence]
        if at < 0:
            raise OSError("it begins before the file")
        self._at = at
        return at

    def read(self, size: int = -1) -> bytes:
        length = max(0, self._nbytes - self._at) if size < 0 else size
        if length > self._left:
            raise ValueError("it is too large")
        found = os.pread(self._fd, length, self._at)
        self._at += len(found)
        self._left -= len(found)
        return found
