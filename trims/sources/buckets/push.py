"""Objects that are written into the stores of clouds: whole, checked, and under their names only when complete.

A large file is sent in parts, some at a time. One that is given up, or whose file changes meanwhile, leaves nothing
under the name, and its parts are taken back; parts whose program died stay with the store until its own
rules remove them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import obstore
from awscrt import checksums

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    CallerError,
    DeadlineError,
    DigestMismatchError,
    TrimsError,
    is_system_error,
)
from trims.sources.buckets.bucket import ObjectAddress
from trims.sources.buckets.objects import open_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.sources.base import RemoteFile
    from trims.sources.buckets.bucket import Bucket
    from trims.sources.settings import SourceSettings

#: Bytes of a part, and parts under way at once: their product is the memory of an upload.
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 4
#: Parts that a store takes for one object.
_MOST_PARTS = 10_000
#: Bytes that are read at once, after each of which a push may be given up.
_PIECE_BYTES = 4 << 20


class ObjectWriter:
    """Writes objects, and reads small ones back. Safe to use from several threads; methods block.

    Args:
        settings: Variables with credentials and endpoints, and the client that reads.
        scheme: One of `trims.sources.buckets.objects.SCHEMES`.
    """

    def __init__(self, settings: SourceSettings, scheme: str) -> None:
        self._settings = settings
        self._scheme = scheme
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def put_file(
        self,
        address: str,
        source: int | Path,
        nbytes: int,
        on_progress: Callable[[int], None] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> RemoteFile:
        """Send a file; an object of the name is replaced once all of it is there.

        Args:
            source: Descriptor, whose position is not used, or path.
            on_progress: Called with the bytes taken from the file so far; some of them are still under way.
            cancelled: Asked after each piece; gives up when true. A part that stalls delays that, by minutes at most.

        Raises:
            DeadlineError: The transfer was cancelled; nothing has the name, or what had it before still does.
            ArtifactError: The file cannot be read.
            ArtifactChangedError: The file is shorter than `nbytes`, or another program wrote the object meanwhile.
            DigestMismatchError: The store has other bytes than were sent; they were removed.
        """
        bucket, key = self._find(address)
        try:
            with _opened(source) as fd:
                pieces = _Pieces(fd, nbytes, address, bucket.checksum, on_progress, cancelled)
                return _put(bucket, key, nbytes, pieces)
        except OSError as error:
            if not is_system_error(error):
                raise
            raise ArtifactError(f"the file for {address} cannot be read: {error.strerror}") from error

    def put_bytes(self, address: str, data: bytes) -> RemoteFile:
        """Send a small object. Raises as `put_file`."""
        bucket, key = self._find(address)
        with bucket.errors(key):
            result = obstore.put(bucket.store, key, data, use_multipart=False)
        return _checked(bucket, key, len(data), _digest(bucket.checksum, data, 0), result["e_tag"])

    def head(self, address: str) -> RemoteFile | None:
        """Return what is stored at an address; None if nothing is. Raises as `Opened.fill`."""
        bucket, key = self._find(address)
        return bucket.look(key)

    def read(self, address: str, most_bytes: int) -> bytes | None:
        """Return a small object whole; None if there is none.

        Raises ArtifactError if it has more than `most_bytes`, and as `Opened.fill`.
        """
        bucket, key = self._find(address)
        file = bucket.look(key)
        if file is None:
            return None
        if file.nbytes > most_bytes:
            raise ArtifactError(f"{address} has {file.nbytes} bytes, and at most {most_bytes} are expected")
        room = bytearray(file.nbytes)
        if room:
            with memoryview(room) as view, bucket.errors(key):
                for _ in bucket.http.fill(bucket.signed("GET", key), file, [(0, view)], address):
                    pass
        return bytes(room)

    def close(self) -> None:
        """Give back connections. Idempotent."""
        with self._lock:
            buckets = list(self._buckets.values())
            self._buckets.clear()
        for bucket in buckets:
            bucket.http.close()

    def _find(self, address: str) -> tuple[Bucket, str]:
        parsed = ObjectAddress.parse(address)
        if parsed.folder:
            raise CallerError(f"{address} is a prefix: an object's address ends with its name")
        with self._lock:
            bucket = self._buckets.get((parsed.bucket, parsed.account))
        if bucket is None:
            made, _ = open_bucket(self._settings, self._scheme, address)
            with self._lock:
                bucket = self._buckets.setdefault((parsed.bucket, parsed.account), made)
            if bucket is not made:
                made.http.close()
        return bucket, parsed.key


@contextlib.contextmanager
def _opened(source: int | Path) -> Iterator[int]:
    if isinstance(source, int):
        yield source
        return
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@dataclass(slots=True)
class _Pieces:
    """Pieces of a file on their way to a store, with their checksum and progress."""

    fd: int
    nbytes: int
    address: str
    kind: str
    on_progress: Callable[[int], None]
    cancelled: Callable[[], bool]
    digest: int = 0

    def __iter__(self) -> Iterator[bytes]:
        done = 0
        while done < self.nbytes:
            if self.cancelled():
                raise DeadlineError(f"the push of {self.address} was cancelled after {done} bytes; nothing was kept")
            piece = os.pread(self.fd, min(_PIECE_BYTES, self.nbytes - done), done)
            if not piece:
                raise ArtifactChangedError(
                    f"the file for {self.address} ends after {done} bytes, and had {self.nbytes}: it was changed"
                )
            self.digest = _digest(self.kind, piece, self.digest)
            done += len(piece)
            yield piece
            self.on_progress(done)
        if self.cancelled():
            raise DeadlineError(f"the push of {self.address} was cancelled; nothing was kept")


def _put(bucket: Bucket, key: str, nbytes: int, pieces: _Pieces) -> RemoteFile:
    part_bytes = max(PART_BYTES, -(-nbytes // _MOST_PARTS))
    with bucket.errors(key):
        if nbytes <= part_bytes:
            result = obstore.put(bucket.store, key, b"".join(pieces), use_multipart=False)
        else:
            result = obstore.put(bucket.store, key, iter(pieces), chunk_size=part_bytes, max_concurrency=PARTS_AT_ONCE)
    return _checked(bucket, key, nbytes, pieces.digest, result["e_tag"])


def _checked(bucket: Bucket, key: str, nbytes: int, digest: int, etag: str | None) -> RemoteFile:
    """Return the object as the store has it, if it is what was sent."""
    name = bucket.address(key)
    found = bucket.look(key)
    if found is None or (etag and found.version and _bare(found.version) != _bare(etag)):
        raise ArtifactChangedError(f"{name} was replaced or removed by another program just after it was written")
    stated = found.checksums.get(bucket.checksum)
    sent = f"{digest:0{len(stated)}x}" if stated else None
    if found.nbytes == nbytes and stated == sent:
        return found
    raise DigestMismatchError(
        f"{name}: {nbytes} bytes with {bucket.checksum or 'no checksum'} {sent or ''} were sent, and the store has "
        f"{found.nbytes} with {stated or 'none'}; {_remove(bucket, key)}"
    )


def _remove(bucket: Bucket, key: str) -> str:
    """Remove an object that is not what was sent. Return what became of it."""
    try:
        bucket.remove(key)
    except TrimsError as error:
        return f"they are still there, as they could not be removed: {error}"
    return "they were removed"


def _bare(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')


def _digest(kind: str, piece: bytes, before: int) -> int:
    """Return the checksum of bytes that follow others; 0 for a store that states none."""
    if kind == "crc64nvme":
        return int(checksums.crc64nvme(piece, before))
    return int(checksums.crc32c(piece, before)) if kind == "crc32c" else 0
