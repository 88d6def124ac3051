"""Looking at a safetensors file without reading its weights: how much describes them, and a copy of just that.

Both read and never map: a mapped file that is truncated kills its reader. What the file says of itself decides where to
read, and is checked first.
"""

from __future__ import annotations

import mmap
import os
import struct

from trims.core.errors import ArtifactError, ImageError
from trims.image.index import HEADER, LENGTH, MAGIC, decode_header, header_length
from trims.image.program import EXECUTABLE_KINDS, WHY, Program

#: An artifact with more to parse is not converted in a process that serves others: parsing holds the interpreter lock,
#: and collecting garbage does so for as long as there are many objects. Measured: 2,500 tensors, about so much, take
#: 30 ms in pieces of a few; 100,000 tensors take 3 s in pieces of up to 300 ms.
PARSE_HERE_BYTES = 256 << 10
#: An image with more to parse is not checked there. Of the same tensors an image says 2.3 times as much, so what was
#: converted there is checked there.
CHECK_HERE_BYTES = 640 << 10
#: A byte that is only copied costs about this much less than one that is parsed.
_COPIED_PER_PARSED = 16
#: Letters that are shown of what a program says.
_MOST_LETTERS = 2000
_PROGRAM_LENGTH = struct.Struct("<I")


def described_bytes(fd: int, nbytes: int, name: str) -> int:
    """Return how many bytes of JSON and tables reading this file takes, from three short reads.

    A program's body is copied and not parsed, so it counts for less. Raises ArtifactError if the header's length cannot
    be true.
    """
    length = header_length(os.pread(fd, LENGTH.size, 0), nbytes, name)
    start = LENGTH.size + length
    begin = os.pread(fd, HEADER.size, start)
    if not begin.startswith(MAGIC):
        return length
    try:
        index = decode_header(begin)
    except ImageError:  # then nothing behind the header will be read
        return length
    head = os.pread(fd, _PROGRAM_LENGTH.size, start + index.program_offset) if index.program_bytes else b""
    head_bytes = _PROGRAM_LENGTH.unpack(head)[0] if len(head) == _PROGRAM_LENGTH.size else 0
    return length + index.index_bytes + min(head_bytes, index.program_bytes) + index.program_bytes // _COPIED_PER_PARSED


def runs_code(fd: int, nbytes: int) -> bool:
    """Return whether the program of an image runs code when it is used; True where that cannot be seen.

    False for a file that is no image. Raises OSError if it cannot be read.
    """
    try:
        head = _program_head(fd, nbytes)
    except ImageError:
        return True
    return head is not None and head.kind in EXECUTABLE_KINDS


def why_of(fd: int, nbytes: int) -> str:
    """Return why the program of an image is not what its converter makes of other models; empty if it is, or unknown.

    Raises OSError if it cannot be read.
    """
    try:
        head = _program_head(fd, nbytes)
    except ImageError:
        return ""
    why = "" if head is None else str(head.attributes.get(WHY, ""))[:_MOST_LETTERS]
    return "".join(letter if letter.isprintable() else " " for letter in why)  # it may be of an image of others


def _program_head(fd: int, nbytes: int) -> Program | None:
    """Return the program of an image without its body; None for a file that is no image, or has none.

    Raises ImageError if it cannot be read.
    """
    try:
        start = LENGTH.size + header_length(os.pread(fd, LENGTH.size, 0), nbytes, "image")
        index = decode_header(os.pread(fd, HEADER.size, start))
    except (ArtifactError, ImageError):
        return None
    if not index.program_bytes:
        return None
    begin = start + index.program_offset
    (head_bytes,) = _PROGRAM_LENGTH.unpack(os.pread(fd, _PROGRAM_LENGTH.size, begin).ljust(_PROGRAM_LENGTH.size, b"\0"))
    return Program.decode(os.pread(fd, _PROGRAM_LENGTH.size + min(head_bytes, index.program_bytes), begin))


def without_weights(fd: int, nbytes: int) -> mmap.mmap:
    """Return a sparse copy of an image in memory of its own: header, index and program, zeros for weights.

    Raises ImageError if the file is no image or ends too early, OSError if it cannot be read.
    """
    with open(os.memfd_create("trims-look"), "w+b", buffering=0) as copy:
        os.ftruncate(copy.fileno(), nbytes)
        try:
            length = header_length(os.pread(fd, LENGTH.size, 0), nbytes, "image")
        except ArtifactError as error:
            raise ImageError(str(error)) from error
        start = LENGTH.size + length
        index = decode_header(os.pread(fd, HEADER.size, start))
        if start + index.data_bytes != nbytes:
            raise ImageError(f"the index describes {index.data_bytes} bytes of data, the image has {nbytes - start}")
        _copy(fd, copy.fileno(), 0, start + index.index_bytes)
        _copy(fd, copy.fileno(), start + index.program_offset, index.program_bytes)
        return mmap.mmap(copy.fileno(), nbytes, prot=mmap.PROT_READ)


def _copy(source: int, target: int, begin: int, count: int) -> None:
    at, end = begin, begin + count
    while at < end:
        data = os.pread(source, end - at, at)
        if not data:
            raise ImageError(f"the image ends at {at} bytes, {end} were expected: truncated?")
        at += os.pwrite(target, data, at)
