"""Choice of the faster way in, by measurement: for each kind of source, and for images of about the same size."""

from __future__ import annotations

import fcntl
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Images below this size are too small to measure speed with.
TELLING_BYTES = 64 << 20
#: Copies made the faster way before a slower one is tried again: what else runs on the host may change.
_TRIED_AGAIN_AFTER = 32

Kind = tuple[bool, int]


def in_shared_memory(fd: int) -> bool:
    """Return whether a file lies in shared memory (tmpfs or a memfd): the kernel has seals for those files only."""
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return True


class WayCosts:
    """Measured seconds per byte of each way in, and the choice by them.

    Sizes within a factor of four count as equal.
    """

    def __init__(self) -> None:
        self._s_per_byte: dict[Kind, dict[str, float]] = {}
        self._chosen: Counter[Kind] = Counter()

    def choose(self, ways: Sequence[str], nbytes: int, *, shared: bool) -> str:
        """Return the way for the next image: one that was never measured, else the fastest, now and then a slower one.

        Args:
            ways: What is possible; the first one is for images that are too small to measure.
        """
        if nbytes < TELLING_BYTES or len(ways) == 1:
            return ways[0]
        kind = self._kind(nbytes, shared=shared)
        costs = self._s_per_byte.get(kind, {})
        untried = [way for way in ways if way not in costs]
        if untried:
            return untried[0]
        self._chosen[kind] += 1
        fastest_first = sorted(ways, key=costs.__getitem__)
        turn, again = divmod(self._chosen[kind], _TRIED_AGAIN_AFTER)
        return fastest_first[0] if again else fastest_first[1 + turn % (len(ways) - 1)]

    def record(self, way: str, nbytes: int, took_s: float, *, shared: bool) -> None:
        """Record how long an image took that was moved this way."""
        if nbytes >= TELLING_BYTES:
            self._s_per_byte.setdefault(self._kind(nbytes, shared=shared), {})[way] = took_s / nbytes

    def of(self, nbytes: int, *, shared: bool) -> dict[str, float]:
        """Return the last measured seconds per byte for such an image, by way."""
        return dict(self._s_per_byte.get(self._kind(nbytes, shared=shared), {}))

    @staticmethod
    def _kind(nbytes: int, *, shared: bool) -> Kind:
        return shared, nbytes.bit_length() // 2
