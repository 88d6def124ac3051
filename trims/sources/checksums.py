"""Checksums of files that come in pieces, in any order: of each piece while it is hot, combined to the file's.

CRC64NVME and CRC32C can be combined, and cost a few percent of a transfer. SHA-256, blake3 and git's SHA-1 need the
bytes in order: a thread hashes what has come so far, right behind the transfer.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any

import blake3
from awscrt import checksums

from trims.core.errors import DigestMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trims.sources.partial import Partial

#: Checksums of pieces that combine, by name: of bytes, and of two adjoining pieces.
_OF_PIECES: dict[str, tuple[Callable[[Any], int], Callable[[int, int, int], int], int]] = {
    "crc64nvme": (checksums.crc64nvme, checksums.combine_crc64nvme, 16),
    "crc32c": (checksums.crc32c, checksums.combine_crc32c, 8),
}
COMBINED = frozenset(_OF_PIECES)


def of_piece(name: str, data: memoryview) -> int:
    """Return the checksum of a piece."""
    return _OF_PIECES[name][0](data)


def combined(name: str, pieces: Iterable[tuple[int, int]]) -> str:
    """Return, in hex, the checksum of adjoining pieces, each given as its checksum and its length."""
    _, combine, digits = _OF_PIECES[name]
    total = 0
    for value, nbytes in pieces:
        total = combine(total, value, nbytes)
    return f"{total:0{digits}x}"


def compare(name: str, stated: Mapping[str, str], found: Mapping[str, str], by: str) -> None:
    """Raise DigestMismatchError, with both, if a digest that was found is another one than the one stated.

    Args:
        name: What was hashed.
        stated: Hexadecimal digests by algorithm.
        found: As computed from the bytes.
        by: Who states them: the end of a sentence.
    """
    for kind, digest in stated.items():
        if kind in found and found[kind] != digest:
            raise DigestMismatchError(f"{name} has the {kind} {found[kind]}, and {digest} is what {by}")


def hasher(name: str, nbytes: int) -> Any:
    """Return an object that hashes bytes in order, for one of the names in `base.CHECKSUMS`."""
    if name == "blake3":
        return blake3.blake3()
    if name == "git-sha1":
        return hashlib.sha1(f"blob {nbytes}\0".encode(), usedforsecurity=False)
    return hashlib.new(name, usedforsecurity=False)


class InOrder(threading.Thread):
    """Hashes the bytes of a transfer in order, as far as they have come.

    Args:
        partial: Says which pieces are there, and has their bytes.
        names: Digests to compute.
    """

    def __init__(self, partial: Partial, names: Iterable[str]) -> None:
        super().__init__(name="trims-digest", daemon=True)
        self._partial = partial
        self._hashers = {name: hasher(name, partial.nbytes) for name in names}
        self._come = threading.Condition()
        self._stopped = False
        self._failed: BaseException | None = None

    def woken(self) -> None:
        """Go on: a piece has come."""
        with self._come:
            self._come.notify()

    def stop(self) -> None:
        """End before all has come. Returns once the thread reads no more."""
        with self._come:
            self._stopped = True
            self._come.notify()
        self.join()

    def digests(self) -> dict[str, str]:
        """Wait until all pieces, which are there, were hashed; return the digests in hex."""
        self.woken()
        self.join()
        if self._failed is not None:
            raise self._failed
        return {name: each.hexdigest() for name, each in self._hashers.items()}

    def run(self) -> None:
        """See `threading.Thread.run`."""
        try:
            for piece in range(self._partial.pieces):
                with self._come:
                    self._come.wait_for(lambda at=piece: self._stopped or self._partial.has(at))  # type: ignore[misc]
                    if self._stopped:
                        return
                with self._partial.room(piece) as data:
                    for each in self._hashers.values():
                        each.update(data)
        except BaseException as error:  # noqa: BLE001 - raised where the digests are asked for
            self._failed = error
