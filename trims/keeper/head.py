"""The head of an image on a device: its header, index and program in host memory, for borrowers to find tensors by.

A head is a file as long as the image in which only those parts are written: readers of images read it as they read any,
and it takes a few pages. Its tensors read as zeros; who borrows from a device looks them up on the device.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from trims.image.reader import ImageView
from trims.memory.mapping import FileMapping

if TYPE_CHECKING:
    from collections.abc import Iterator

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def make_head(fd: int, nbytes: int) -> int:
    """A sealed, read-only descriptor of the head of the image in `fd`, whose end is up to the caller.

    Raises ImageError if the file is no image.
    """
    head = os.memfd_create("trims-head", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(head, nbytes)
        with contextlib.closing(FileMapping(fd, nbytes)) as mapping:
            for begin, count in _parts(ImageView(mapping.view())):
                _write_all(head, mapping.view()[begin : begin + count], begin)
        fcntl.fcntl(head, fcntl.F_ADD_SEALS, _SEALS)
        return os.open(f"/proc/self/fd/{head}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(head)


def _parts(image: ImageView) -> Iterator[tuple[int, int]]:
    """Begin and length of what a head has."""
    index, start = image.index_header, image.data_start
    yield 0, start + index.index_bytes
    if index.program_bytes:
        yield start + index.program_offset, index.program_bytes


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    with data:
        done = 0
        while done < len(data):
            with data[done:] as part:
                done += os.pwrite(fd, part, offset + done)
