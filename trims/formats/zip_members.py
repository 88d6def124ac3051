"""Places of the members of a zip file, for those that are stored and not compressed.

Read are the directory at its end and the head of each member; both are small, and a directory that is not is refused.
Standard library only. Not covered: checksums of members, which nothing but a reader of all bytes can check.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from typing import NamedTuple

from trims.core.errors import NotInPlaceError
from trims.image.peek import PARSE_HERE_BYTES

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 0x1
#: Largest directory that is read, in bytes: it is parsed faster than a pickle, and says as much again.
DIRECTORY_BYTES = 2 * PARSE_HERE_BYTES


class Member(NamedTuple):
    """Bytes of the zip file that are a member's."""

    offset: int
    nbytes: int


def stored_members(fd: int, nbytes: int, *, directory_bytes: int | None = None) -> dict[str, Member]:
    """Return all members of a zip file of this length, by their names.

    Args:
        directory_bytes: Length above which nothing is read of a directory; None for `DIRECTORY_BYTES`.

    Raises NotInPlaceError for a file that is no zip file or does not begin with one, or has a member that is
    compressed, encrypted, there twice, or not where the directory says.
    """
    try:
        with zipfile.ZipFile(
            _Tail(fd, nbytes, DIRECTORY_BYTES if directory_bytes is None else directory_bytes)
        ) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise NotInPlaceError(f"its zip directory cannot be read here: {error}") from error
    found: dict[str, Member] = {}
    for info in infos:
        packed = info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size
        if packed or info.flag_bits & _ENCRYPTED or info.filename in found:
            raise NotInPlaceError(f"member {info.filename!r} is packed, or there twice")
        found[info.filename] = _located(fd, info, nbytes)
    if infos and all(info.header_offset for info in infos):  # zipfile reads such an archive, torch does not
        raise NotInPlaceError("its archive does not begin at its first byte")
    return found


def _located(fd: int, info: zipfile.ZipInfo, nbytes: int) -> Member:
    # A directory may claim any offset, below zero and above what the kernel takes too.
    head = os.pread(fd, _LOCAL_HEADER.size, info.header_offset) if 0 <= info.header_offset < nbytes else b""
    if len(head) < _LOCAL_HEADER.size or not head.startswith(_LOCAL_MAGIC):
        raise NotInPlaceError(f"member {info.filename!r} is not where the directory says")
    _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(head)
    member = Member(info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes, info.file_size)
    if member.offset + member.nbytes > nbytes:
        raise NotInPlaceError(f"member {info.filename!r} ends behind the file")
    return member


class _Tail(io.RawIOBase):
    """A file for `zipfile`, of which no more is read than a directory may have."""

    def __init__(self, fd: int, nbytes: int, most_bytes: int) -> None:
        super().__init__()
        self._fd = fd
        self._nbytes = nbytes
        self._at = 0
        self._left = most_bytes

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
