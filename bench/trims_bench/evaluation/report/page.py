"""A report as one HTML file that needs nothing else: tables, pictures as SVG, and the stack it was made on."""

from __future__ import annotations

import time
from html import escape
from typing import TYPE_CHECKING, Any

from trims.core.units import format_latency
from trims_bench.evaluation.leveled import Leveled
from trims_bench.evaluation.records import LAYERS, WORKLOAD
from trims_bench.evaluation.report import explain, leveled, text
from trims_bench.evaluation.report.plots import picture
from trims_bench.evaluation.report.rows import answers_differ, batches, discarded, rows
from trims_bench.evaluation.report.text import optimal, times
from trims_bench.evaluation.stages import rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trims_bench.evaluation.records import Evaluated

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { white-space: nowrap; padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child, td.text { text-align: left; }
svg { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
.note { color: #b00020; } dt { float: left; width: 11rem; opacity: .7; } dd { margin: 0 0 0 11rem; }
"""


def as_html(evaluations: Sequence[Evaluated], *, compare: bool = False) -> str:
    """Return evaluations as one HTML document.

    Args:
        evaluations: Evaluations, in the order in which they are shown.
        compare: The first two are compared at the top.

    Raises NotSupportedError if matplotlib is not installed.
    """
    title = "Evaluation" + ("s" if len(evaluations) != 1 else "")
    body = [f"<h1>{title} of {escape(', '.join(dict.fromkeys(each.order.model for each in evaluations)))}</h1>"]
    if compare:
        compared = "\n".join(explain.lines(evaluations[0], evaluations[1]))
        body.append(f"<h2>Compared</h2><pre>{escape(compared)}</pre>")
    for each in evaluations:
        body += _section(each)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>trims: {title.lower()}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _section(evaluated: Evaluated) -> Iterable[str]:
    order, samples = evaluated.order, evaluated.samples
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(order.began_unix_s))
    yield f"<h2>{escape(order.model)}, {escape(order.id)}</h2><p>{began}, {len(samples)} samples</p>"
    if evaluated.documents.get(WORKLOAD):
        told = "\n".join(text.lines(evaluated))
        yield f'<div class="scroll"><pre>{escape(told)}</pre></div>'
        yield "<h3>Stack</h3><dl>" + "".join(_facts(order.stack)) + "</dl>"
        return
    drawing = picture(evaluated, "svg").decode()
    yield drawing[drawing.index("<svg") :]
    found = rows(samples)
    yield _table(
        ("start", "first answer", "95 % interval", "ideal", "share of ideal", "vs alone", "vs fresh", "accounted", ""),
        (
            (
                row.title, format_latency(row.seconds.value),
                f"{format_latency(row.seconds.low)} to {format_latency(row.seconds.high)}", format_latency(row.ideal_s),
                f"{row.share_of_ideal:.0%}", times(row.over_alone), times(row.over_fresh), f"{row.accounted:.1%}",
                f"no verdict: {row.seconds.verdict}" if row.seconds.verdict else "",
            )
            for row in found
        ),
    )  # fmt: skip
    names = sorted({name for row in found for name in row.stages}, key=rank)
    yield "<h3>Stages</h3>" + _table(
        ("stage", *(row.title for row in found)),
        (
            (name, *(format_latency(row.stages[name]) if row.stages.get(name) else "" for row in found))
            for name in names
        ),
    )
    sizes = batches(samples)
    if sizes:
        yield "<h3>Batches</h3>" + _table(
            ("way", "batch", "run", "rows/s", "gain", ""),
            (
                (
                    each.way, each.batch, format_latency(each.run.value), f"{each.per_s:.1f}",
                    "" if each.gain is None else f"{each.gain:+.0%}", optimal(each),
                )
                for each in sizes
            ),
        )  # fmt: skip
    for document in evaluated.documents.get(LAYERS, ()):
        found_levels = "\n".join(leveled.lines(Leveled.from_json(document)))
        yield f'<h3>Layers</h3><div class="scroll"><pre>{escape(found_levels)}</pre></div>'
    yield from _notes(evaluated)
    yield "<h3>Stack</h3><dl>" + "".join(_facts(order.stack)) + "</dl>"


def _notes(evaluated: Evaluated) -> Iterable[str]:
    if answers_differ(evaluated.samples):
        yield '<p class="note">The answers to the same inputs differ.</p>'
    for reason, count in discarded(evaluated.samples).items():
        yield f"<p>{count} discarded, {escape(reason)}</p>"
    for what, why in evaluated.unreachable.items():
        yield f"<p>Nothing was started from {escape(what)}: {escape(why)}</p>"
    if not evaluated.ended:
        yield '<p class="note">This evaluation has not ended.</p>'


def _table(heads: Iterable[str], lines: Iterable[Iterable[Any]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _facts(facts: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _facts(value, f"{prefix}{name}.")
        else:
            yield f"<dt>{escape(prefix + name)}</dt><dd>{escape(str(value)) or '&mdash;'}</dd>"
