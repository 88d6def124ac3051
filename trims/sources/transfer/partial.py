"""Partial files: memory that a transfer fills piece by piece, and a journal of the pieces that are there.

The journal lies beside the data. A record is written once its piece is in the file, and has the piece's CRC64NVME: a
transfer that was killed at any byte goes on with the pieces that are proven to be there, and fetches the others. After
a power cut, too: a record whose piece did not reach the disk does not match it. Not covered: which pieces are fetched
when (`transfer`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import threading
from typing import TYPE_CHECKING

from trims.core.errors import NoSpaceError
from trims.core.units import format_bytes
from trims.memory.mapping import LARGE_PAGE_BYTES, FileMapping, c_library
from trims.sources.files import full, is_full
from trims.sources.transfer import checksums

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from trims.memory.large_pages import LargePages
    from trims.sources.base import RemoteFile

#: Bytes of a piece: what a kill can cost for each connection, and what fits in a processor's cache while it is checked.
PIECE_BYTES = 1 << 20
JOURNAL = ".journal"
_RECORD = struct.Struct("<IQ")
_FORMAT = 1


class Partial:
    """Bytes of one file on their way.

    Args:
        fd: Memory to fill, open for reading and writing, `nbytes` long; owned by the caller.
        nbytes: Length, not 0.
        journal: Open for appending; None if nothing can be resumed. Owned by the caller.
        also: Checksums beside CRC64NVME that are combined from pieces.
        holes: No block of it is reserved yet.
        pages: Has holes filled with large pages, where it can.
    """

    def __init__(
        self,
        fd: int,
        nbytes: int,
        journal: int | None = None,
        also: Collection[str] = (),
        *,
        holes: bool = False,
        pages: LargePages | None = None,
    ) -> None:
        self.nbytes = nbytes
        self._fd, self._holes, self._pages = fd, holes, pages
        self.pieces = -(-nbytes // PIECE_BYTES)
        self._map = FileMapping(fd, nbytes, write=True, align=True)
        self._view = self._map.view()
        self._journal = journal
        self._lock = threading.Lock()
        #: Checksums of the pieces that are there, by name.
        self._sums: dict[str, dict[int, int]] = {name: {} for name in dict.fromkeys(("crc64nvme", *also))}

    def has(self, piece: int) -> bool:
        """Return whether a piece is there."""
        return piece in self._sums["crc64nvme"]

    @property
    def complete(self) -> bool:
        """Return whether all pieces are there."""
        return len(self._sums["crc64nvme"]) == self.pieces

    def missing(self) -> list[int]:
        """Return the numbers of the pieces that are not there."""
        return [piece for piece in range(self.pieces) if not self.has(piece)]

    def length_of(self, piece: int) -> int:
        """Return the bytes of a piece: the last one may be short."""
        return min(PIECE_BYTES, self.nbytes - piece * PIECE_BYTES)

    def room(self, piece: int) -> memoryview:
        """Return a piece as memory; release it."""
        begin = piece * PIECE_BYTES
        return self._view[begin : begin + self.length_of(piece)]

    def filled(self, piece: int) -> None:
        """Take note of a piece that was filled. Called by several threads, for pieces apart."""
        with self.room(piece) as data:
            found = {name: checksums.of_piece(name, data) for name in self._sums}
        with self._lock:
            for name, value in found.items():
                self._sums[name][piece] = value
            if self._journal is not None:
                self._note(self._journal, _RECORD.pack(piece, found["crc64nvme"]))

    def _note(self, journal: int, record: bytes) -> None:
        """Write a record. Where the disk has no room for it, no more are written: a resume fetches those pieces."""
        try:
            if os.write(journal, record) == len(record):
                return
        except OSError as error:
            if not is_full(error):
                raise
        self._journal = None

    def prefault(self, piece: int, pieces: int) -> None:
        """Have the kernel give the pages of some pieces at once, where it can: a page at a time costs more."""
        begin = piece * PIECE_BYTES
        nbytes = min(pieces * PIECE_BYTES, self.nbytes - begin)
        if self._holes:
            self._reserve(begin, nbytes)
        c_library().madvise(self._map.address + begin, nbytes, _POPULATE_WRITE)  # a kernel before 5.14 refuses

    def _reserve(self, begin: int, nbytes: int) -> None:
        """Have memory for a range, in large pages where the kernel gives some: a hole could turn out to have none."""
        first = -(-begin // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
        try:
            if self._pages is not None and first < begin + nbytes:
                room = self._pages.reserve(first, begin + nbytes)
                if room is not None:
                    room.release()
            os.posix_fallocate(self._fd, begin, nbytes)
        except OSError as error:
            if is_full(error) or error.errno == errno.ENOMEM:
                raise NoSpaceError(f"there is no memory for {format_bytes(nbytes)} more of an image") from error
            raise

    def resume(self, records: bytes) -> int:
        """Take over the pieces that a journal proves to be there. Return their bytes."""
        for piece, value in _RECORD.iter_unpack(records[: len(records) - len(records) % _RECORD.size]):
            if piece >= self.pieces:
                continue
            with self.room(piece) as data:
                if checksums.of_piece("crc64nvme", data) == value:
                    for name, known in self._sums.items():
                        known[piece] = value if name == "crc64nvme" else checksums.of_piece(name, data)
        return sum(map(self.length_of, self._sums["crc64nvme"]))

    def combined(self) -> dict[str, str]:
        """Return the checksums of the whole file in hex, once all pieces are there."""
        return {
            name: checksums.combined(name, ((known[piece], self.length_of(piece)) for piece in range(self.pieces)))
            for name, known in self._sums.items()
        }

    def close(self) -> None:
        """Unmap. Idempotent."""
        self._view.release()
        self._map.close()


#: MADV_POPULATE_WRITE, which Python has no name for.
_POPULATE_WRITE = 23


@contextlib.contextmanager
def on_disk(path: Path, file: RemoteFile, also: Collection[str], resumed: Callable[[int], None]) -> Iterator[Partial]:
    """Open the partial file at a path, with what an earlier transfer of the same version has left there.

    Args:
        path: File of the data; the journal lies beside it, with `JOURNAL` behind its name.
        file: What is fetched. Without a version or a checksum, nothing proves that what is there is of the same file.
        resumed: Called with the bytes that are there already.

    Raises NoSpaceError if the disk has no room for all of it.
    """
    about = json.dumps(_about(file), sort_keys=True).encode() + b"\n"
    journal_path = path.with_name(path.name + JOURNAL)
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(_opened(path))
        journal = stack.enter_context(_opened(journal_path))
        before = _read(journal)
        is_same = before.startswith(about) and bool(file.version or file.checksums)
        if not is_same or os.fstat(data).st_size != file.nbytes:
            os.ftruncate(journal, 0)
            os.ftruncate(data, 0)
            _allocate(data, file.nbytes, path)
            os.write(journal, about)
            before = b""
        records = before[len(about) :]
        torn = len(records) % _RECORD.size
        if torn:  # by a crash: what is written next must begin where a record does
            os.ftruncate(journal, len(before) - torn)
        partial = Partial(data, file.nbytes, journal, also)
        stack.callback(partial.close)
        resumed(partial.resume(records))
        yield partial
        if partial.complete:
            os.fsync(data)


def remove(path: Path) -> None:
    """Remove a partial file's data and journal: the data is wrong, or another file by now. Idempotent."""
    for each in (path, path.with_name(path.name + JOURNAL)):
        with contextlib.suppress(FileNotFoundError):
            each.unlink()


def _about(file: RemoteFile) -> dict[str, object]:
    return {
        "format": _FORMAT, "version": file.version, "nbytes": file.nbytes, "checksums": dict(file.checksums),
        "piece_bytes": PIECE_BYTES,
    }  # fmt: skip


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND * path.name.endswith(JOURNAL), 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def _read(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _allocate(fd: int, nbytes: int, path: Path) -> None:
    """Reserve the blocks: a disk that fills up says so before anything is fetched, and no write to it can fail."""
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.ftruncate(fd, 0)
        if is_full(error):
            raise full(path.parent, f"{format_bytes(nbytes)} do not fit") from error
        raise
