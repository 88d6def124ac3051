"""Two evaluations side by side: what became slower or faster, in which stage, and what differs in their stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.units import format_latency
from trims_bench.evaluation.report.rows import rows
from trims_bench.evaluation.stack import differences
from trims_bench.evaluation.statistics import LEAST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims_bench.evaluation.records import Evaluated
    from trims_bench.evaluation.report.rows import Row

#: Stages whose difference is at least this part of the whole are named.
_NAMED = 0.02


class Change(NamedTuple):
    """One tier, way and batch of both evaluations.

    Attributes:
        ratio: Later median divided by the earlier one.
        is_sure: The intervals of the medians do not overlap, and both have samples enough.
        stages: Seconds that each stage grew by, the largest change first.
    """

    title: str
    before_s: float
    after_s: float
    ratio: float
    is_sure: bool
    stages: dict[str, float]


def changes(one: Evaluated, other: Evaluated) -> list[Change]:
    """Return what changed from one evaluation to the other, for each start that both have."""
    before = {(row.tier, row.way, row.batch): row for row in rows(one.samples)}
    both = ((before.get((row.tier, row.way, row.batch)), row) for row in rows(other.samples))
    return [_change(was, now) for was, now in both if was is not None]


def _change(was: Row, now: Row) -> Change:
    apart = was.seconds.high < now.seconds.low or now.seconds.high < was.seconds.low
    grown = {name: now.stages.get(name, 0.0) - was.stages.get(name, 0.0) for name in {**was.stages, **now.stages}}
    return Change(
        now.title, was.seconds.value, now.seconds.value, now.seconds.value / was.seconds.value,
        apart and min(was.seconds.samples, now.seconds.samples) >= LEAST,
        dict(sorted(grown.items(), key=lambda item: -abs(item[1]))),
    )  # fmt: skip


def causes(one: Evaluated, other: Evaluated) -> list[str]:
    """Return a line for each fact in which two evaluations' models and stacks differ."""
    found = differences(dict(one.order.stack), dict(other.order.stack))
    if one.order.model != other.order.model:
        found.insert(0, f"model: {one.order.model} -> {other.order.model}")
    elif one.order.key != other.order.key:
        found.insert(0, "model: its manifest, its artifact or the code beside it changed")
    return found


def lines(one: Evaluated, other: Evaluated) -> list[str]:
    """Return the comparison as text."""
    text = [f"{one.order.id} -> {other.order.id}"]
    for each in changes(one, other):
        sure = "" if each.is_sure else "  (within what these samples can show)"
        text.append(
            f"{each.title}: {format_latency(each.before_s)} -> {format_latency(each.after_s)} ({each.ratio:.2f}x){sure}"
        )
        if each.is_sure:
            text += [
                f"  {name} {'+' if grown > 0 else '-'}{format_latency(abs(grown))}"
                for name, grown in each.stages.items()
                if abs(grown) >= _NAMED * each.before_s
            ]
    found = causes(one, other)
    return [*text, *(["what differs:", *(f"  {each}" for each in found)] if found else ["the stacks are equal"])]


def as_json(one: Evaluated, other: Evaluated) -> dict[str, Any]:
    """Return the comparison for programs."""
    found: Sequence[str] = causes(one, other)
    return {
        "before": one.order.id, "after": other.order.id,
        "changes": [each._asdict() for each in changes(one, other)], "differences": list(found),
    }  # fmt: skip
