"""Report of an evaluation: a line for each tier and way, and the stages of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trims_predictors.evaluation.stages import UNATTRIBUTED, rank
from trims_predictors.evaluation.statistics import Median, median_of
from trims_predictors.evaluation.ways import FRESH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims_predictors.evaluation.evaluation import Sample


@dataclass(frozen=True, slots=True)
class Row:
    """Starts from one tier in one way.

    Attributes:
        seconds: From nothing to the first answer.
        stages: Median seconds of each stage, in the order of a start.
        ideal_s: Median of the runs after the first one: computing alone.
        share_of_ideal: `ideal_s` as a part of the whole.
        speed_up: How many times faster than a fresh process from the same tier; None without one.
        accounted: Part of the whole that stages other than `unattributed` account for.
        discarded: Samples that do not count, by reason.
        trace_id: Of the sample that is nearest to the median.
    """

    tier: str
    way: str
    seconds: Median
    stages: dict[str, float]
    ideal_s: float
    share_of_ideal: float
    speed_up: float | None
    accounted: float
    discarded: dict[str, int] = field(default_factory=dict)
    trace_id: str = ""


def rows(samples: Sequence[Sample]) -> list[Row]:
    """Return a row for each tier and way that has samples which count, in the order in which they were taken."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for each in samples:
        groups.setdefault((each.tier, each.way), []).append(each)
    medians = {
        where: median_of([each.seconds for each in group if not each.why_not])
        for where, group in groups.items()
        if any(not each.why_not for each in group)
    }
    return [_row(groups[where], medians[where], medians.get((where[0], FRESH))) for where in medians]


def _row(group: Sequence[Sample], seconds: Median, fresh: Median | None) -> Row:
    good = [each for each in group if not each.why_not]
    names = sorted({name for each in good for name in each.stages}, key=rank)
    stages = {name: median_of([each.stages.get(name, 0.0) for each in good]).value for name in names}
    ideal_s = median_of([second for each in good for second in each.steady_s]).value
    accounted = median_of([1 - each.stages.get(UNATTRIBUTED, 0.0) / each.seconds for each in good]).value
    return Row(
        good[0].tier, good[0].way, seconds, stages, ideal_s, min(1.0, ideal_s / seconds.value),
        None if fresh is None else fresh.value / seconds.value, accounted,
        dict(Counter(each.why_not for each in group if each.why_not)),
        min(good, key=lambda each: abs(each.seconds - seconds.value)).trace_id,
    )  # fmt: skip


def answers_differ(samples: Sequence[Sample]) -> bool:
    """Return whether samples that count gave different answers to the same inputs."""
    return len({each.digest for each in samples if not each.why_not}) > 1


def discarded(samples: Sequence[Sample]) -> dict[str, int]:
    """Return how many samples do not count, by tier, way and reason."""
    return dict(Counter(f"{each.tier} {each.way}: {each.why_not}" for each in samples if each.why_not))


def as_json(row: Row) -> dict[str, Any]:
    """Return a row for programs."""
    return {
        "tier": row.tier, "way": row.way, "seconds": row.seconds._asdict(), "verdict": row.seconds.verdict,
        "stages": row.stages, "ideal_s": row.ideal_s, "share_of_ideal": row.share_of_ideal,
        "speed_up": row.speed_up, "accounted": row.accounted, "discarded": row.discarded, "trace_id": row.trace_id,
    }  # fmt: skip


def lines(samples: Sequence[Sample]) -> list[str]:
    """Return the report as text: a table of whole starts, then of their stages."""
    found = rows(samples)
    if not found:
        return ["no sample counts", *_discarded_lines(samples)]
    text = [f"{'from':6}{'how':10}{'first answer':>14}  {'95 % interval':22}{'ideal':>10}{'share':>8}{'vs fresh':>9}"]
    for row in found:
        interval = f"{_time(row.seconds.low)} .. {_time(row.seconds.high)}"
        speed_up = "" if row.speed_up is None else f"{row.speed_up:.1f}x"
        line = f"{row.tier:6}{row.way:10}{_time(row.seconds.value):>14}  {interval:22}{_time(row.ideal_s):>10}"
        line += f"{row.share_of_ideal:8.0%}{speed_up:>9}"
        text.append(line + (f"  no verdict: {row.seconds.verdict}" if row.seconds.verdict else ""))
    text += ["", *_stage_lines(found)]
    if answers_differ(samples):
        text += ["", "the answers to the same inputs differ: these are not starts of one and the same model"]
    return text + _discarded_lines(samples)


def _stage_lines(found: Sequence[Row]) -> list[str]:
    names = sorted({name for row in found for name in row.stages}, key=rank)
    text = [f"{'stage':18}" + "".join(f"{f'{row.tier} {row.way}':>16}" for row in found)]
    for name in names:
        values = (f"{_time(row.stages[name]):>16}" if row.stages.get(name) else f"{'-':>16}" for row in found)
        text.append(f"{name:18}" + "".join(values))
    text.append(f"{'accounted for':18}" + "".join(f"{row.accounted:16.1%}" for row in found))
    return text


def _discarded_lines(samples: Sequence[Sample]) -> list[str]:
    found = discarded(samples)
    return ["", *(f"{count} discarded, {reason}" for reason, count in found.items())] if found else []


def _time(seconds: float) -> str:
    return (
        f"{seconds:.2f} s"
        if seconds >= 10
        else f"{seconds * 1e3:.1f} ms"
        if seconds >= 1e-3
        else f"{seconds * 1e6:.0f} us"
    )
