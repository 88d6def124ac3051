"""When sharing pays: what a file from shared memory costs against the file read by the program itself.

A load takes a fixed time, and a time for each byte. Sharing pays from the size on at which both ways take as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Sizes between which the threshold lies, whatever was measured: a wrong measurement does no harm.
LEAST_BYTES, MOST_BYTES = 64 << 10, 64 << 20


class Cost(NamedTuple):
    """Cost of loading a file: seconds for any, and seconds for each byte."""

    fixed_s: float
    byte_s: float


def fit(points: Sequence[tuple[int, float]]) -> Cost:
    """Return the cost that explains sizes in bytes and seconds best, by relative error: small files count as much."""
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    size = sum(w * n for w, (n, _) in zip(weights, points, strict=True)) / total
    seconds = sum(w * s for w, (_, s) in zip(weights, points, strict=True)) / total
    above = sum(w * (n - size) * (s - seconds) for w, (n, s) in zip(weights, points, strict=True))
    below = sum(w * (n - size) ** 2 for w, (n, _) in zip(weights, points, strict=True))
    byte_s = max(above / below, 0.0)
    return Cost(max(seconds - byte_s * size, 0.0), byte_s)


def break_even(shared: Cost, alone: Cost) -> int:
    """Return the bytes from which on a file from shared memory takes no longer than one that is read, bounded."""
    saved_s = alone.byte_s - shared.byte_s
    if saved_s <= 0:
        return MOST_BYTES
    return bounded(round((shared.fixed_s - alone.fixed_s) / saved_s))


def bounded(nbytes: int) -> int:
    """Return the threshold within its bounds."""
    return min(max(nbytes, LEAST_BYTES), MOST_BYTES)
