"""A report as text for a terminal: whole starts, their stages, batches, and what does not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.units import format_latency
from trims_bench.evaluation.leveled import Leveled
from trims_bench.evaluation.records import FIGURE, LAYERS, WORKLOAD
from trims_bench.evaluation.report import leveled
from trims_bench.evaluation.report.rows import answers_differ, batches, discarded, rows
from trims_bench.evaluation.stages import rank
from trims_bench.workloads import report as load
from trims_bench.workloads.result import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from trims_bench.evaluation.records import Evaluated, Sample
    from trims_bench.evaluation.report.rows import Batch, Row


def lines(evaluated: Evaluated) -> list[str]:
    """Return the report of an evaluation."""
    samples = evaluated.samples
    workloads = evaluated.documents.get(WORKLOAD, ())
    if workloads:
        return [line for each in workloads for line in load.lines(Workload.from_json(each))]
    figures = [line for each in evaluated.documents.get(FIGURE, ()) for line in _figure_lines(each["figure"])]
    if figures and not samples:
        return figures
    text = [*_starts(samples), *_batch_lines(samples), *figures]
    for found_layers in evaluated.documents.get(LAYERS, ()):
        text += ["", *leveled.lines(Leveled.from_json(found_layers))]
    if answers_differ(samples):
        text += [
            "",
            "the answers to the same inputs differ in some bits",
        ]
    found = discarded(samples)
    text += ["", *(f"{count} discarded, {reason}" for reason, count in found.items())] if found else []
    text += [f"nothing was started from {what}: {why}" for what, why in evaluated.unreachable.items()]
    return text if evaluated.ended else [*text, f"not ended; `trims eval --resume {evaluated.order.id}` goes on"]


def _figure_lines(figure: Mapping[str, Any]) -> list[str]:
    """Return what a benchmark compared, and whether each bar was reached."""
    text = ["", f"{figure['name']}: {figure['title']}"]
    for each in figure["comparisons"]:
        bar = f"  {each['bar']['relation']} {each['bar']['limit']:g}" if each["bar"] else ""
        verdict = {None: "", True: "  reached", False: "  NOT reached"}[each["reached"]]
        text.append(f"{each['what']:60} {each['value']:>10.3g} {each['unit']}{bar}{verdict}")
    return text


def _starts(samples: Sequence[Sample]) -> list[str]:
    found = rows(samples)
    if not found:
        return ["no sample counts"]
    head = f"{'from':6}{'how':10}{'batch':>6}{'first answer':>14}  {'95 % interval':24}{'ideal':>10}{'share':>7}"
    text = [head + f"{'vs alone':>10}{'vs fresh':>10}"]
    for row in found:
        interval = f"{format_latency(row.seconds.low)} .. {format_latency(row.seconds.high)}"
        line = f"{row.tier:6}{row.way:10}{row.batch:6}{format_latency(row.seconds.value):>14}  {interval:24}"
        line += f"{format_latency(row.ideal_s):>10}{row.share_of_ideal:7.0%}"
        line += f"{times(row.over_alone):>10}{times(row.over_fresh):>10}"
        text.append(line + (f"  no verdict: {row.seconds.verdict}" if row.seconds.verdict else ""))
    return [*text, "", *_stage_lines(found)]


def _stage_lines(found: Sequence[Row]) -> list[str]:
    names = sorted({name for row in found for name in row.stages}, key=rank)
    width = max(14, *(len(row.title) + 2 for row in found))
    text = [f"{'stage':18}" + "".join(f"{row.title:>{width}}" for row in found)]
    for name in names:
        values = (format_latency(row.stages[name]) if row.stages.get(name) else "-" for row in found)
        text.append(f"{name:18}" + "".join(f"{value:>{width}}" for value in values))
    text.append(f"{'accounted for':18}" + "".join(f"{row.accounted:>{width}.1%}" for row in found))
    return text


def _batch_lines(samples: Sequence[Sample]) -> list[str]:
    found = batches(samples)
    if not found:
        return []
    text = ["", f"{'how':10}{'batch':>6}{'run':>12}{'rows/s':>12}{'gain':>8}"]
    for each in found:
        gain = "" if each.gain is None else f"{each.gain:+.0%}"
        best = f"  {optimal(each)}" if each.is_optimal else ""
        text.append(f"{each.way:10}{each.batch:6}{format_latency(each.run.value):>12}{each.per_s:12.1f}{gain:>8}{best}")
    return text


def optimal(batch: Batch) -> str:
    """Return what makes a batch the optimal one; empty for others."""
    if not batch.is_optimal:
        return ""
    if batch.next_gain is None:
        return "the largest measured still gains"
    return "optimal: a larger one gains 5 % or less"


def times(ratio: float | None) -> str:
    """Return a ratio such as `2.5x`; empty for None."""
    return "" if ratio is None else f"{ratio:.1f}x"
