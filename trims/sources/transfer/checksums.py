"""Checksums of files that come in pieces, in any order: of each piece while it is hot, combined to the file's.

CRC64NVME and CRC32C can be combined, and cost a few percent of a transfer. SHA-256, blake3 and git's SHA-1 need the
bytes in order (`in_order`).
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any

import blake3

from trims.core.errors import DigestMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
#: Checksums whose pieces combine, with the number of their hexadecimal digits.
_DIGITS = {"crc64nvme": 16, "crc32c": 8}
COMBINED = frozenset(_DIGITS)


@cache
def _of_pieces(name: str) -> tuple[Callable[[Any], int], Callable[[int, int, int], int]]:
    """Return the functions for the checksum of bytes, and for that of two adjoining pieces."""
    # Imported here: it is a tenth of what a daemon imports, and one that reads no bucket never needs it.
    from awscrt import checksums

    return getattr(checksums, name), getattr(checksums, f"combine_{name}")


def of_piece(name: str, data: memoryview) -> int:
    """Return the checksum of a piece."""
    return _of_pieces(name)[0](data)


def combined(name: str, pieces: Iterable[tuple[int, int]]) -> str:
    """Return, in hex, the checksum of adjoining pieces, each given as its checksum and its length."""
    _, combine = _of_pieces(name)
    total = 0
    for value, nbytes in pieces:
        total = combine(total, value, nbytes)
    return f"{total:0{_DIGITS[name]}x}"


def compare(name: str, stated: Mapping[str, str], found: Mapping[str, str], by: str) -> None:
    """Raise DigestMismatchError, with both, if a digest that was found is another one than the one stated.

    Args:
        stated: Hexadecimal digests by algorithm.
        found: Digests computed from the bytes.
        by: Source of the stated digests: the end of a sentence.
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
