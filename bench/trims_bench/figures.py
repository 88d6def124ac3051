"""Figures of a benchmark: samples of two sides taken in turns, a value made of them, and the bar it is held against.

Samples are nanoseconds, bytes or counts, all of them kept. Standard library only: measuring runs in any environment.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Samples:
    """Measurements of one side, in the order in which they were taken.

    Attributes:
        of: What was done, for people.
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
        """The middle one."""
        return float(median(self.values))

    def percentile(self, share: float) -> int:
        """The smallest value that at least this share, 0 to 1, of all values do not exceed."""
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
        bar: None for what is only shown beside.
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
        """Everything, raw samples included."""
        medians = [side.median for side in self.sides]
        return {**asdict(self), "reached": self.reached, "medians": medians}


def faster(what: str, ours: Samples, theirs: Samples, bar: Bar | None) -> Comparison:
    """Compare how many times faster we are: the median over the pairs of (theirs / ours)."""
    return Comparison(what, _median_ratio(theirs, ours), "x", bar, (ours, theirs))


def share(what: str, ours: Samples, theirs: Samples, bar: Bar | None) -> Comparison:
    """Compare how many times theirs ours is: the median over the pairs of (ours / theirs)."""
    return Comparison(what, _median_ratio(ours, theirs), "x", bar, (ours, theirs))


def _median_ratio(above: Samples, below: Samples) -> float:
    """Return the median ratio of pairs taken one after the other: a machine that slows down for a while slows both."""
    return median(a / b for a, b in zip(above.values, below.values, strict=True))


@dataclass(slots=True)
class Figure:
    """One benchmark's result.

    Attributes:
        name: Of the scenario.
        title: What is measured, in a sentence.
        notes: What a reader must know to judge it.
    """

    name: str
    title: str
    comparisons: list[Comparison]
    notes: list[str] = field(default_factory=list)

    @property
    def reached(self) -> bool:
        """Return whether every bar is."""
        return all(each.reached is not False for each in self.comparisons)

    def to_json(self) -> dict[str, Any]:
        """Return the figure as JSON for the results folder."""
        return {
            "name": self.name,
            "title": self.title,
            "reached": self.reached,
            "comparisons": [each.to_json() for each in self.comparisons],
            "notes": self.notes,
        }
