"""Tensors whose bytes lie in a file exactly as the image wants them, and reading them in parallel.

Reading a span of a file straight into its place is all that most artifacts need: safetensors, torch's zip files, raw
ONNX data, uncompressed npz. Files are remembered by what `stat` says of them when the plan is made; one
that shrinks, grows or is replaced before the last byte is read is an ArtifactError, never a wrong image. Not
covered: digests, and reading around the page cache.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trims.core.errors import ArtifactChangedError, ArtifactError, ArtifactNotFoundError
from trims.image.descriptors import explain_descriptors, lacks_descriptors
from trims.memory.reading import read_up_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

#: Large enough that the system call is noise, small enough that two threads share one tensor and cancelling is quick.
PIECE_BYTES = 8 << 20
#: Two threads saturate a page cache to tmpfs copy on small machines; more than four only fight for memory.
_READERS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was when it was described.

    Attributes:
        stamp: Device, inode and modification time in ns: another stamp is another file.
    """

    path: Path
    nbytes: int
    stamp: tuple[int, int, int]

    @classmethod
    def look(cls, path: Path) -> SourceFile:
        """Describe the file as it is now. Raises ArtifactError if it is missing or no regular file."""
        with open_source(path) as fd:
            return cls.of(path, fd)

    @classmethod
    def of(cls, path: Path, fd: int) -> SourceFile:
        """Describe the file that is open. Raises ArtifactError if it is no regular file."""
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ArtifactError(f"{path} is not a file")
        return cls(path, *_identity(fd))

    def read(self, length: int, offset: int = 0) -> bytes:
        """Return at most this many bytes from the offset on; fewer at the end of the file."""
        with open_source(self.path) as fd:
            return os.pread(fd, min(length, self.nbytes), offset)

    def check_again(self) -> None:
        """Raise ArtifactError if the file at the path is no longer the same."""
        with open_source(self.path) as fd:
            self.check(fd)

    def check(self, fd: int) -> None:
        """Raise ArtifactError if the descriptor is not of the same file with the same length and time."""
        if _identity(fd) != (self.nbytes, self.stamp):
            raise ArtifactChangedError(f"{self.path} was changed while it was read; load it again when it is at rest")


class FileSpan(NamedTuple):
    """A tensor's bytes: from this offset of the file on, as many as the tensor has."""

    file: SourceFile
    offset: int


@dataclass(frozen=True, slots=True)
class _Piece:
    file: SourceFile
    offset: int
    begin: int
    end: int


@contextmanager
def open_source(path: Path) -> Iterator[int]:
    """Yield a read-only descriptor of an artifact's file for a `with`.

    Raises ArtifactNotFoundError where there is none, ArtifactError where it cannot be opened, CapacityError where
    no file can.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if lacks_descriptors(error):
            raise explain_descriptors(error) from error
        kind = ArtifactNotFoundError if isinstance(error, FileNotFoundError) else ArtifactError
        raise kind(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise ArtifactError(f"{path} cannot be read: {error}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _identity(fd: int) -> tuple[int, tuple[int, int, int]]:
    found = os.fstat(fd)
    return found.st_size, (found.st_dev, found.st_ino, found.st_mtime_ns)


def read_spans(target: memoryview, jobs: Iterable[tuple[int, int, FileSpan]], on_read: Callable[[int], None]) -> None:
    """Read every `(begin, end, span)` into `target[begin:end]`.

    Args:
        target: Writable memory.
        jobs: Places in the target and where their bytes come from.
        on_read: Called in this thread after each piece with its bytes; an exception from it stops the reading.

    Raises:
        ArtifactError: A file is gone, shorter than promised, or changed since it was described.
    """
    pieces = sorted(_cut(jobs), key=lambda piece: (piece.file.path, piece.offset))
    with ExitStack() as stack:
        files = {piece.file for piece in pieces}
        fds = {file: stack.enter_context(open_source(file.path)) for file in files}
        _read_all(target, pieces, fds, on_read)
        for file, fd in fds.items():
            file.check(fd)


def _cut(jobs: Iterable[tuple[int, int, FileSpan]]) -> Iterator[_Piece]:
    for begin, end, span in jobs:
        for at in range(begin, end, PIECE_BYTES):
            yield _Piece(span.file, span.offset + at - begin, at, min(at + PIECE_BYTES, end))


def _read_all(
    target: memoryview, pieces: Sequence[_Piece], fds: Mapping[SourceFile, int], on_read: Callable[[int], None]
) -> None:
    if _READERS == 1 or sum(piece.end - piece.begin for piece in pieces) <= PIECE_BYTES:
        for piece in pieces:
            on_read(_read_piece(target, piece, fds[piece.file]))
        return
    with ThreadPoolExecutor(_READERS, "trims-read") as pool:
        reads: deque[Future[int]] = deque()
        try:
            for piece in pieces:
                if len(reads) > _READERS:  # no further ahead of `on_read`, which may pause the reading
                    on_read(reads.popleft().result())
                reads.append(pool.submit(_read_piece, target, piece, fds[piece.file]))
            while reads:
                on_read(reads.popleft().result())
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _read_piece(target: memoryview, piece: _Piece, fd: int) -> int:
    length = piece.end - piece.begin
    with target[piece.begin : piece.end] as place:
        done = read_up_to(fd, place, piece.offset)
    if done < length:
        raise ArtifactError(f"{piece.file.path} ended at {piece.offset + done} while it was read: truncated meanwhile?")
    return length
