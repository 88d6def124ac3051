"""Measurements of benchmarks: sides that take turns, medians and how sure they are, and the bars they are held against.

Samples are nanoseconds, bytes or counts, all of them kept. Measuring needs the standard library only, as it runs in any
environment; intervals are those of `trims eval`.
"""

from __future__ import annotations

import gc
import math
import time
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from trims.trace.spans import span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def measure(
    ways: Mapping[str, Callable[[], Any]],
    count: int,
    *,
    warm_up: int = 1,
    burst: int = 1,
    keep: Callable[[str, Any], None] | None = None,
) -> dict[str, list[int]]:
    """Time several ways of doing one thing in turns, A B A B, so that what slows the machine slows all of them.

    Args:
        ways: Name -> what to do. What it returns is dropped, outside of the time, before the next one begins.
        count: Timed rounds, rounded up to whole bursts.
        warm_up: Untimed calls: rounds before the others, or, with bursts, calls at the beginning of each.
        burst: Timed calls in a row. One at a time each begins with the caches of another way; a load generator's calls
            follow each other.
        keep: Called with name and result of each, outside of the time; with bursts, of each burst's last one.

    Returns:
        Nanoseconds by name, in order. Where traces are on, each timed call is a span.
    """
    found: dict[str, list[int]] = {name: [] for name in ways}
    before, within = (warm_up, 0) if burst == 1 else (0, warm_up)
    for number in range(-before, math.ceil(count / burst)):
        for name, do in ways.items():
            gc.collect()
            for call in range(within + burst):
                result = None
                with span(name):
                    began = time.perf_counter_ns()
                    result = do()
                    taken = time.perf_counter_ns() - began
                if number >= 0 and call >= within:
                    found[name].append(taken)
            if keep is not None:
                keep(name, result)
            del result
    gc.collect()
    return found


@dataclass(frozen=True, slots=True)
class Samples:
    """Measurements of one side, in the order in which they were taken.

    Attributes:
        unit: `ns`, `bytes`, or what was counted.
    """

    of: str
    values: Sequence[int]
    unit: str = "ns"

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"no samples of {self.of}")

    @property
    def median(self) -> float:
        """Return the middle one."""
        return float(median(self.values))

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the median, by the bootstrap; the range, if there are few samples."""
        from trims_bench.evaluation.statistics import median_of

        found = median_of(self.values)
        return found.low, found.high

    def percentile(self, share: float) -> int:
        """Return the smallest value that at least this share, 0 to 1, of all values do not exceed."""
        return sorted(self.values)[max(0, math.ceil(share * len(self.values)) - 1)]


@dataclass(frozen=True, slots=True)
class Bar:
    """`Bar(">=", 50)`: what a value must reach."""

    relation: str
    limit: float

    def __post_init__(self) -> None:
        if self.relation not in ("<=", ">="):
            raise ValueError(f"a bar is <= or >=, not {self.relation!r}")

    def reached(self, value: float) -> bool:
        """Return whether the value is on the right side."""
        return value <= self.limit if self.relation == "<=" else value >= self.limit


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of a figure.

    Attributes:
        what: Compared, for people.
        value: What is held against the bar: a ratio, or a number in `unit`.
        unit: `x` for ratios, else of the value.
        bar: Bar of the value; None for what is only shown beside.
        sides: Ours first.
    """

    what: str
    value: float
    unit: str
    bar: Bar | None
    sides: Sequence[Samples]

    @property
    def reached(self) -> bool | None:
        """Return whether the value reaches the bar; None without a bar."""
        return None if self.bar is None else self.bar.reached(self.value)

    def to_json(self) -> dict[str, Any]:
        """Return everything, raw samples included."""
        medians, intervals = ([getattr(side, name) for side in self.sides] for name in ("median", "interval"))
        return {**asdict(self), "reached": self.reached, "medians": medians, "intervals": intervals}


def faster(what: str, ours: Samples, theirs: Samples, bar: Bar | None) -> Comparison:
    """Compare how many times faster we are: the median over the pairs of (theirs / ours)."""
    return Comparison(what, _median_ratio(theirs, ours), "x", bar, (ours, theirs))


def share(what: str, ours: Samples, theirs: Samples, bar: Bar | None) -> Comparison:
    """Compare how many times theirs ours is: the median over the pairs of (ours / theirs)."""
    return Comparison(what, _median_ratio(ours, theirs), "x", bar, (ours, theirs))


def more(what: str, ours: Samples, theirs: Samples, bar: Bar | None) -> Comparison:
    """Compare how many milliseconds longer ours takes: the median over the pairs."""
    value = median(mine - other for mine, other in zip(ours.values, theirs.values, strict=True)) / 1e6
    return Comparison(what, value, "ms", bar, (ours, theirs))


def middle(what: str, ours: Samples, bar: Bar | None, *beside: Samples) -> Comparison:
    """Compare a median in milliseconds with its bar; other sides are shown beside it."""
    return Comparison(what, ours.median / 1e6, "ms", bar, (ours, *beside))


def ratio(what: str, ours: Samples, theirs: Samples, bar: Bar | None) -> Comparison:
    """Compare how many times theirs ours is, of sides that are no pairs: the ratio of the medians."""
    return Comparison(what, ours.median / theirs.median, "x", bar, (ours, theirs))


def _median_ratio(above: Samples, below: Samples) -> float:
    """Return the median ratio of pairs taken one after the other: a machine that slows down for a while slows both."""
    return median(a / b for a, b in zip(above.values, below.values, strict=True))


@dataclass(slots=True)
class Figure:
    """Result of one part of a benchmark.

    Attributes:
        title: What is measured, in a sentence.
        notes: What a reader must know to judge it.
        evaluation: Id of the evaluation that it was read from; empty if it was measured for itself.
    """

    name: str
    title: str
    comparisons: list[Comparison]
    notes: list[str] = field(default_factory=list)
    evaluation: str = ""

    @property
    def reached(self) -> bool:
        """Return whether every bar is."""
        return all(each.reached is not False for each in self.comparisons)

    def to_json(self) -> dict[str, Any]:
        """Return the figure as JSON for the database and the results folder."""
        return {
            "name": self.name,
            "title": self.title,
            "reached": self.reached,
            "comparisons": [each.to_json() for each in self.comparisons],
            "notes": self.notes,
            "evaluation": self.evaluation,
        }
