"""Rows of a report: medians of the samples of one tier, way and batch, and what follows from them."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trims_bench.evaluation.stages import UNATTRIBUTED, rank
from trims_bench.evaluation.statistics import Median, median_of
from trims_bench.evaluation.ways import ALONE, FRESH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims_bench.evaluation.records import Evaluated, Sample

    Where = tuple[str, str, int]

#: Part by which doubling a batch must raise the throughput to be worth it.
WORTH = 0.05
#: Tier of the start of trims -> that of the framework alone it is compared with: its file, in memory or not.
_ALONE_FOR = {"cloud": "file", "file": "file", "disk": "file", "cpu": "cpu", "gpu": "cpu"}


@dataclass(frozen=True, slots=True)
class Row:
    """Starts from one tier in one way.

    Attributes:
        batch: Size of the requests.
        seconds: Seconds from nothing to the first answer.
        stages: Seconds of each stage, in the order of a start, of the sample that is nearest to the median.
        ideal_s: Median of the runs after the first one: computing alone.
        share_of_ideal: `ideal_s` as a part of the whole.
        over_alone: How many times faster than the framework alone; None without its samples.
        over_fresh: How many times faster than a fresh process from the same tier; None without its samples.
        accounted: Part of the whole that stages other than `unattributed` account for.
        discarded: Samples that do not count, by reason.
        trace_id: Trace of the sample that is nearest to the median.
    """

    tier: str
    way: str
    batch: int
    seconds: Median
    stages: dict[str, float]
    ideal_s: float
    share_of_ideal: float
    over_alone: float | None
    over_fresh: float | None
    accounted: float
    discarded: dict[str, int] = field(default_factory=dict)
    trace_id: str = ""

    @property
    def title(self) -> str:
        """Return what it is of, as a heading."""
        return f"{self.tier} {self.way}" + (f" x{self.batch}" if self.batch != 1 else "")

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "tier": self.tier, "way": self.way, "batch": self.batch, "seconds": self.seconds._asdict(),
            "verdict": self.seconds.verdict, "stages": self.stages, "ideal_s": self.ideal_s,
            "share_of_ideal": self.share_of_ideal, "over_alone": self.over_alone, "over_fresh": self.over_fresh,
            "accounted": self.accounted, "discarded": self.discarded, "trace_id": self.trace_id,
        }  # fmt: skip


class Batch(NamedTuple):
    """Steady runs of one batch.

    Attributes:
        gain: Growth of `per_s` over the batch before, as a part; None for the first.
        is_optimal: Whether doubling it gains no more than `WORTH` and each smaller one gains more; or it is largest.
        next_gain: Gain of the batch behind it; None for the largest.
    """

    batch: int
    way: str
    run: Median
    per_s: float
    gain: float | None
    is_optimal: bool
    next_gain: float | None = None


def rows(samples: Sequence[Sample]) -> list[Row]:
    """Return a row for each tier, way and batch that has samples which count, in the order they were taken in."""
    groups = _groups(samples)
    medians = {
        where: median_of([each.seconds for each in group if not each.why_not])
        for where, group in groups.items()
        if any(not each.why_not for each in group)
    }
    return [_row(groups[where], medians) for where in medians]


def _groups(samples: Sequence[Sample]) -> dict[Where, list[Sample]]:
    groups: dict[Where, list[Sample]] = {}
    for each in samples:
        groups.setdefault(each.where, []).append(each)
    return groups


def _row(group: Sequence[Sample], medians: Mapping[Where, Median]) -> Row:
    good = [each for each in group if not each.why_not]
    tier, way, batch = good[0].where
    seconds = medians[good[0].where]
    names = sorted({name for each in good for name in each.stages}, key=rank)
    # Of one sample, because medians of each would not add up.
    middle = min(good, key=lambda each: abs(each.seconds - seconds.value))
    stages = {name: middle.stages[name] for name in names if name in middle.stages}
    ideal_s = median_of([second for each in good for second in each.steady_s]).value
    accounted = median_of([1 - each.stages.get(UNATTRIBUTED, 0.0) / each.seconds for each in good]).value
    return Row(
        tier, way, batch, seconds, stages, ideal_s, min(1.0, ideal_s / seconds.value),
        _ratio(medians.get((_ALONE_FOR.get(tier, ""), ALONE, 1)), seconds),
        _ratio(medians.get((tier, FRESH, 1)), seconds), accounted,
        dict(Counter(each.why_not for each in group if each.why_not)),
        middle.trace_id,
    )  # fmt: skip


def _ratio(one: Median | None, other: Median) -> float | None:
    return None if one is None else one.value / other.value


def batches(samples: Sequence[Sample]) -> list[Batch]:
    """Return latency and throughput by batch of the ways that have several, the smallest first."""
    by_way: dict[str, dict[int, list[float]]] = {}
    for each in samples:
        if not each.why_not and each.steady_s:
            by_way.setdefault(each.way, {}).setdefault(each.batch, []).extend(each.steady_s)
    found: list[Batch] = []
    for way, runs in by_way.items():
        if len(runs) > 1:
            found += _batches_of(way, {batch: median_of(runs[batch]) for batch in sorted(runs)})
    return found


def _batches_of(way: str, runs: Mapping[int, Median]) -> list[Batch]:
    sizes = list(runs)
    per_s = [size / runs[size].value for size in sizes]
    gains = [None, *(after / before - 1 for before, after in itertools.pairwise(per_s))]
    best = next((index for index, gain in enumerate(gains[1:]) if gain is not None and gain <= WORTH), len(sizes) - 1)
    after = [*gains[1:], None]
    return [
        Batch(size, way, runs[size], per_s[index], gains[index], index == best, after[index])
        for index, size in enumerate(sizes)
    ]


def answers_differ(samples: Sequence[Sample]) -> bool:
    """Return whether samples of one batch that count gave answers that differ in a bit.

    Those of the framework alone are left out: it may add in another order.
    """
    found: dict[int, set[str]] = {}
    for each in samples:
        if not each.why_not and each.way != ALONE:
            found.setdefault(each.batch, set()).add(each.digest)
    return any(len(digests) > 1 for digests in found.values())


def discarded(samples: Sequence[Sample]) -> dict[str, int]:
    """Return how many samples do not count, by tier, way and reason."""
    return dict(Counter(f"{each.tier} {each.way}: {each.why_not}" for each in samples if each.why_not))


def as_json(evaluated: Evaluated) -> dict[str, Any]:
    """Return a whole evaluation for programs."""
    samples = evaluated.samples
    return {
        **evaluated.order.as_json(), "ended": evaluated.ended, "unreachable": dict(evaluated.unreachable),
        "rows": [row.as_json() for row in rows(samples)],
        "batch_sizes": [{**each._asdict(), "run": each.run._asdict()} for each in batches(samples)],
        "answers_differ": answers_differ(samples), "discarded": discarded(samples),
        "documents": {kind: list(bodies) for kind, bodies in evaluated.documents.items()},
    }  # fmt: skip
