"""Arrivals: the intended times of requests, in nanoseconds after the beginning, laid down before a load begins."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trims.core.errors import CallerError
from trims_bench.workloads.order import MOST_REQUESTS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def poisson_times(
    rate: float, random: np.random.Generator, *, seconds: float = math.inf, requests: int | None = None
) -> NDArray[np.int64]:
    """Return times of a Poisson process: gaps are exponential, and no arrival depends on another one.

    Args:
        rate: Requests per second on average.
        requests: After how many it ends, if that comes first; None if only the time counts.

    Raises CallerError if that are more requests than one load has.
    """
    import numpy as np

    parts, last, count = [], 0.0, 0
    most = math.inf if requests is None else requests
    while last < seconds and count < most:
        missing = int(min(most - count, 16 + 1.05 * rate * (seconds - last)))
        check_count(count + missing)
        part = last + np.cumsum(random.exponential(1.0 / rate, missing))
        parts.append(part)
        last, count = float(part[-1]), count + missing
    times = np.concatenate(parts) if parts else np.zeros(0)
    return _nanoseconds(times[times < seconds][:requests])


def burst_times(rate: float, size: int, *, seconds: float = math.inf, requests: int | None = None) -> NDArray[np.int64]:
    """Return times of bursts: `size` requests at the same moment, at a constant distance that makes up the rate."""
    import numpy as np

    gap_s = size / rate
    bursts = math.ceil(min(seconds / gap_s, math.inf if requests is None else requests / size))
    check_count(bursts * size)
    return _nanoseconds(np.repeat(np.arange(bursts) * gap_s, size)[:requests])


def check_count(count: int) -> None:
    """Raise CallerError if one load cannot have so many requests."""
    if count > MOST_REQUESTS:
        raise CallerError(
            f"the load has {count:,} requests or more, and {MOST_REQUESTS:,} are the most; shorten it with --duration "
            "or --requests"
        )


def _nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    import numpy as np

    found: NDArray[np.int64] = np.round(seconds * 1e9).astype(np.int64)
    return found
