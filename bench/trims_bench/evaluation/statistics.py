"""Medians of samples, and how sure they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

_RESAMPLES = 2000
_SEED = 1
#: Samples below which no interval is stated.
LEAST = 5
#: Width of an interval, as a part of the median, beyond which a machine is too noisy for a verdict.
NOISY = 0.5


class Median(NamedTuple):
    """Median of samples with its 95 % interval by the bootstrap; the interval is the range for few samples.

    Source: B. Efron, "Bootstrap methods: another look at the jackknife", 1979; percentile intervals.
    """

    value: float
    low: float
    high: float
    samples: int

    @property
    def verdict(self) -> str:
        """Return why nothing can be concluded from these samples; empty if something can."""
        if self.samples < LEAST:
            return f"{self.samples} samples are too few"
        width = (self.high - self.low) / self.value if self.value else 0.0
        return f"the interval is {width:.0%} of the median" if width > NOISY else ""


def median_of(values: Sequence[float]) -> Median:
    """Return the median of at least one value, the same for the same values."""
    found = np.asarray(values, dtype=np.float64)
    middle = float(np.median(found))
    if len(found) < LEAST:
        return Median(middle, float(found.min()), float(found.max()), len(found))
    drawn = np.random.default_rng(_SEED).choice(found, (_RESAMPLES, len(found)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return Median(middle, float(low), float(high), len(found))
