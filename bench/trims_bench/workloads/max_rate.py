"""Search for the highest rate that a server holds: doubling until it holds no more, then bisection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Where the search ends: the lowest rate that is not held is at most this part above the highest one that is.
TOLERANCE = 0.05
MOST_PROBES = 24
#: Seconds that a probe takes at most: where it would take longer, the search for a lower rate ends.
MOST_PROBE_S = 600.0
#: Slow requests beyond the percentile that a verdict has to be able to see.
_LEAST_BEYOND = 10


@dataclass(frozen=True, slots=True)
class Probe:
    """One load at one rate.

    Attributes:
        rate: Requests per second.
        requests: How many the verdict is made of.
        seconds: Latency at the percentile; None if so many failed that there is none.
        held: Whether that is within the bound.
        late_share: Part of the requests that was sent late, which their latencies contain.
        why: Why it is not held; empty if it is.
    """

    rate: float
    requests: int
    seconds: float | None
    held: bool
    late_share: float
    why: str = ""


def least_requests(percentile: float) -> int:
    """Return how many requests a verdict needs at least, so that ten are beyond the percentile on average."""
    return max(100, math.ceil(round(_LEAST_BEYOND / (1 - percentile / 100), 6)))


def search(probe: Callable[[float], Probe], start: float, least: float) -> tuple[float | None, list[Probe]]:
    """Find the highest rate that is held.

    Args:
        probe: Tries a rate.
        start: The first one.
        least: The lowest one.

    Returns:
        That rate, or None if not even the lowest one is held; and all probes in their order.
    """
    held: float | None = None
    broken: float | None = None
    probes: list[Probe] = []
    rate = start
    while len(probes) < MOST_PROBES and rate >= least:
        probes.append(probe(rate))
        if probes[-1].held:
            held = rate
        else:
            broken = rate
        if held is not None and broken is not None:
            if broken / held - 1 <= TOLERANCE:
                break
            rate = (held + broken) / 2
        else:
            rate = rate * 2 if broken is None else rate / 2
    return held, probes
