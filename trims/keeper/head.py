"""The head of an image on a device: its header, index and program in host memory, for borrowers to find tensors by.

A head is a file of the image's length in which only these parts are written. So the ordinary image reader opens it, and
it takes a few pages of memory. Its tensors read as zeros; borrowers take the tensors from the device.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from trims.core.errors import ArtifactError, ImageError
from trims.image.checksum import stated_sum
from trims.image.index import HEADER, LENGTH, header_length
from trims.image.reader import ImageView
from trims.memory.mapping import FileMapping
from trims.memory.memfd import sealed_file, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE_BYTES = 8 << 20


def make_head(fd: int, nbytes: int) -> int:
    """Return a sealed, read-only descriptor of the head of the image in `fd`. The caller must close it.

    The file is read, never mapped. So a file that is truncated meanwhile, or a failing disk, is an error, not SIGBUS.

    Raises ImageError if the file is no image, or cannot be read.
    """

    def write(head: int) -> None:
        _copy(fd, head, 0, min(nbytes, _fixed_bytes(fd, nbytes)))
        with contextlib.closing(FileMapping(head, nbytes)) as mapping:  # no other process can truncate it
            parts = list(_parts(ImageView(mapping.view())))
        for begin, count in parts:
            _copy(fd, head, begin, count)

    return sealed_file("trims-head", nbytes, write)


def sum_in_head(fd: int, nbytes: int) -> int | None:
    """Return the sum that the image of a head must have by the checksum it states; None if it states none."""
    with contextlib.closing(FileMapping(fd, nbytes)) as mapping, mapping.view() as view:
        return stated_sum(ImageView(view))


def _fixed_bytes(fd: int, nbytes: int) -> int:
    """Length of the part that says where the other parts lie: JSON header and index header."""
    try:
        return LENGTH.size + header_length(_read(fd, 0, LENGTH.size), nbytes, "image") + HEADER.size
    except ArtifactError as error:
        raise ImageError(str(error)) from error


def _parts(image: ImageView) -> Iterator[tuple[int, int]]:
    """Begin and length of the parts that a head has."""
    index, start = image.index_header, image.data_start
    yield 0, start + index.index_bytes
    if index.program_bytes:
        yield start + index.program_offset, index.program_bytes


def _copy(source: int, target: int, begin: int, count: int) -> None:
    for offset in range(begin, begin + count, _PIECE_BYTES):
        write_all(target, _read(source, offset, min(_PIECE_BYTES, begin + count - offset)), offset)


def _read(fd: int, offset: int, count: int) -> bytes:
    try:
        data = os.pread(fd, count, offset)
        while len(data) < count and (more := os.pread(fd, count - len(data), offset + len(data))):
            data += more
    except OSError as error:
        raise ImageError(f"the image cannot be read: {error}") from error
    if len(data) < count:
        raise ImageError(f"the image ends after {offset + len(data)} bytes: truncated?")
    return data
