"""Pictures of evaluations by matplotlib: stages of each start as bars, and throughput by batch."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from trims.core.errors import NotSupportedError
from trims.process.packages import install_words
from trims_bench.evaluation.report.rows import batches, rows
from trims_bench.evaluation.stages import rank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from trims_bench.evaluation.records import Evaluated
    from trims_bench.evaluation.report.rows import Row

#: Colours of stages that have one; others take the next of matplotlib's.
_COLOURS = {
    "process": "#7f7f7f", "import framework": "#bcbd22", "connect": "#17becf", "open": "#1f77b4",
    "convert": "#8c564b", "tier disk": "#aec7e8", "tier cpu": "#6baed6", "tier disk-cpu": "#9ecae1",
    "tier cpu-disk": "#c6dbef", "tier gpu": "#08519c", "tier cpu-gpu": "#3182bd", "attach": "#2ca02c",
    "import code": "#e377c2", "build": "#9467bd", "run": "#ff7f0e", "unattributed": "#d9d9d9",
}  # fmt: skip
_ROW_INCHES = 0.36


def picture(evaluated: Evaluated, form: str) -> bytes:
    """Return the picture of an evaluation's starts.

    Args:
        evaluated: Evaluation, whose picture says so if no sample counts.
        form: `svg` or `png`.

    Raises NotSupportedError if matplotlib is not installed.
    """
    found = rows(evaluated.samples)
    sizes = batches(evaluated.samples)
    figure = _figure(9.0, 1.6 + _ROW_INCHES * max(1, len(found)) + (2.6 if sizes else 0.0))
    if sizes:
        axes = figure.subplots(2, 1, height_ratios=[max(1, len(found)), 6])
        _stages(axes[0], found)
        _throughput(axes[1], evaluated)
    else:
        _stages(figure.subplots(), found)
    figure.suptitle(f"{evaluated.order.model}: from nothing to the first answer", fontsize=11)
    return _drawn(figure, form)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NotSupportedError(f"pictures need matplotlib; {install_words('trims[eval]')}") from error
    return Figure(figsize=(width, height), layout="constrained")


def _stages(axes: Any, found: list[Row]) -> None:
    if not found:
        axes.text(0.5, 0.5, "no sample counts", ha="center")
        return
    names = sorted({name for row in found for name in row.stages}, key=rank)
    titles, left = [row.title for row in found], [0.0] * len(found)
    for name in names:
        widths = [row.stages.get(name, 0.0) * 1e3 for row in found]
        axes.barh(titles, widths, left=left, label=name, color=_COLOURS.get(name), height=0.7)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for index, row in enumerate(found):
        axes.text(left[index], index, f" {row.seconds.value * 1e3:.1f} ms", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds, of the sample nearest to the median")
    axes.set_xlim(right=max(left) * 1.15)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _throughput(axes: Any, evaluated: Evaluated) -> None:
    found = batches(evaluated.samples)
    for way in dict.fromkeys(each.way for each in found):
        of_way = [each for each in found if each.way == way]
        axes.plot([each.batch for each in of_way], [each.per_s for each in of_way], marker="o", label=way)
        best = next(each for each in of_way if each.is_optimal)
        least = "at least " if best.next_gain is None else ""
        axes.annotate(f"optimal: {least}{best.batch}", (best.batch, best.per_s), fontsize=8)
    axes.set_xscale("log", base=2)
    sizes = sorted({each.batch for each in found})
    axes.set_xticks(sizes, [str(each) for each in sizes])
    axes.minorticks_off()
    axes.set_xlabel("batch")
    axes.set_ylabel("rows per second")
    axes.legend(fontsize=7, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _drawn(figure: Figure, form: str) -> bytes:
    import matplotlib as mpl

    made = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "trims"}):  # equal evaluations make equal files
        figure.savefig(made, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
    return made.getvalue()
