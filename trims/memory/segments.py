"""Protocol of CPU sharing, the owner's half, whatever the memory is.

A segment is created, filled by its owner alone, and sealed: after that it never changes. Borrowers get read-only
descriptors. Drivers: `shm.PosixShm`, `memfd.SealedMemfd`. Not covered: capacity (the tier's), the borrower's half
(`attach`).
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Errors of a write into memory when there is none left.
_FULL = (errno.ENOSPC, errno.ENOMEM, errno.EFAULT, errno.EFBIG)


@dataclass(slots=True)
class Segment:
    """Shared memory this process owns.

    Attributes:
        name: Unique in its driver; shows where the bytes are.
        fd: Writable until sealed, read-only afterwards. Owned: `close` it.
        named: Whether there is a name by which others could open or remove it.
    """

    name: str
    nbytes: int
    fd: int
    named: bool = True

    def close(self) -> None:
        """Close the descriptor. Memory with a name stays as long as its name does. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SegmentDriver(Protocol):
    """One kind of shared memory. All methods may be called from several threads."""

    def create(self, label: str, nbytes: int) -> Segment:
        """Create an unfinished segment of this length, zeroed. Its pages are not allocated yet.

        Raises NoSpaceError when the machine has no room; nothing is left behind.
        """
        ...

    def allocate(self, segment: Segment) -> None:
        """Reserve every page now, so that full memory is an error here and not a SIGBUS in the process that writes.

        Raises NoSpaceError.
        """
        ...

    def seal(self, segment: Segment, key: str, digest: str) -> Segment:
        """Make the segment read-only for good. Return it with a read-only descriptor. Used up, also on failure.

        Nothing of this process may have it mapped for writing any more.
        """
        ...

    def discard(self, segment: Segment) -> None:
        """Give an unfinished segment back, with its descriptor."""
        ...

    def remove(self, name: str) -> None:
        """Let go of the name; the memory goes with the last descriptor and mapping. One that is gone is fine."""
        ...

    def names(self) -> Iterator[str]:
        """Yield all segments that can be found again, also an earlier owner's, finished or not. Raises OSError."""
        ...

    def open(self, name: str) -> tuple[Segment, str, str]:
        """Open a sealed segment by name. Return it, and the key and digest it was sealed with.

        Raises ImageError if it was never sealed, OSError if it cannot be opened or is another user's.
        """
        ...

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """Return the error that a failed write means: NoSpaceError with the numbers if memory was full, else itself."""
        ...


def is_full(error: OSError) -> bool:
    """Return whether a write failed because there is no memory left."""
    return error.errno in _FULL
