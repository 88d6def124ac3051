"""Tables of the demo: stages side by side, whether answers are equal, memory, and a summary. Measures nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from rich.table import Table

from trims.cli.output import console, say
from trims.core.units import format_bytes, format_seconds
from trims_bench.smaps import Held, total
from trims_bench.workloads import workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trims_bench.answers import Agreement
    from trims_bench.runs import Model, Report

#: Ways to run a model; the first one is what the others are held against.
ALONE, COLD, WARM = SHOWN = ("framework alone", "trims cold", "trims warm")
#: The daemon has never seen the artifact.
UNSEEN = "trims, never seen before"
WAYS = (*SHOWN, UNSEEN)
_STAGE_ORDER = ("start", "connect", "import", "open", "load", "tokenize", "first inference")
_STAGE_TITLES = {
    "start": "start Python",
    "connect": "connect, ask for the model",
    "import": "import the framework",
    "open": "attach the weights",
    "load": "build the model",
}


@dataclass(frozen=True, slots=True)
class Arrival:
    """Seconds and bytes paid once, when the model was registered.

    Attributes:
        made_s: To make the artifact with its builder, if it has one, and to read it.
        converted_s: To convert it to a disk image.
        image_bytes: Its length.
        earlier: True if an earlier run of the demo paid it.
    """

    made_s: float
    converted_s: float
    image_bytes: int
    earlier: bool = False


@dataclass(slots=True)
class Compared:
    """Runs of one model, by way."""

    model: Model
    arrival: Arrival
    reports: dict[str, list[Report]] = field(default_factory=lambda: {way: [] for way in WAYS})

    def median_s(self, way: str, seconds: Callable[[Report], float]) -> float:
        """Return the median of one figure of the reports, in seconds."""
        return median(map(seconds, self.reports[way]))

    def total_s(self, way: str) -> float:
        """Return the median seconds from the process's start to the answer."""
        return self.median_s(way, lambda report: report.total_s)

    def ready_s(self, way: str) -> float:
        """Return the median seconds for the model itself, without the framework's import and the inference."""
        return self.median_s(way, lambda report: report.ready_s)

    def agreement(self) -> Agreement:
        """Return how far the framework's own answer agrees with the one that differs most from it."""
        expected = self.reports[ALONE][0].answer
        same = workload(self.model.workload).same
        found = [same(expected, report.answer) for way in WAYS for report in self.reports[way]]
        return max(found, key=lambda agreement: (not agreement.equal, agreement.difference))


def show(compared: Compared) -> None:
    """One model: its stages, its answers."""
    console().rule(f"[bold]{compared.model.title}", align="left", style="dim")
    console().print(_stages(compared))
    arrival = compared.arrival
    when = "paid by an earlier run of this demo" if arrival.earlier else "paid just now, before the runs above"
    say(
        f"Registered, once ({when}): artifact made and read in {format_seconds(arrival.made_s)}, converted to an "
        f"image of {format_bytes(arrival.image_bytes)} in {format_seconds(arrival.converted_s)}."
    )
    if compared.reports[UNSEEN]:
        total, ready = (_beside(seconds) for seconds in (compared.total_s, compared.ready_s))
        say(
            "First arrival, at a daemon that has never seen it: "
            f"process start to answer {total}, the model alone {ready}."
        )
    counts = ", ".join(f"{len(compared.reports[way])} {way}" for way in WAYS)
    say(f"Answers ({counts}): {compared.agreement()}.")
    say(compared.reports[WARM][0].answer.text + "\n")


def _beside(seconds: Callable[[str], float]) -> str:
    return f"{format_seconds(seconds(UNSEEN))} ({seconds(ALONE) / seconds(UNSEEN):.2f}x)"


def _stages(compared: Compared) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage, median")
    for way in SHOWN:
        table.add_column(way, justify="right", min_width=16)
    seen = {stage for way in SHOWN for report in compared.reports[way] for stage in report.stages_s}
    for stage in sorted(seen, key=_STAGE_ORDER.index):
        cells = [_stage_cell(compared, way, stage) for way in SHOWN]
        table.add_row(_STAGE_TITLES.get(stage, stage), *cells)
    table.add_section()
    table.add_row("process start to answer", *_with_ratios(compared.total_s), style="bold")
    table.add_row("the model alone", *_with_ratios(compared.ready_s), style="bold")
    return table


def _stage_cell(compared: Compared, way: str, stage: str) -> str:
    if not all(stage in report.stages_s for report in compared.reports[way]):
        return "-"
    return format_seconds(compared.median_s(way, lambda report: report.stages_s[stage]))


def _with_ratios(seconds: Callable[[str], float]) -> list[str]:
    alone = seconds(ALONE)
    cells = [format_seconds(alone)]
    return cells + [f"{format_seconds(seconds(way))}  {alone / seconds(way):.2f}x" for way in (COLD, WARM)]


def memory(title: str, image_bytes: int, alone: Sequence[Held], over: Sequence[Held], weights: Sequence[Held]) -> None:
    """Several processes with one model, each alone and over trims.

    Args:
        title: Of the model.
        image_bytes: One copy.
        alone: Everything each process holds, with the framework's own load.
        over: The same over trims.
        weights: Of `over`, what lies in the shared segment.
    """
    console().rule(f"[bold]{len(over)} processes, one model: {title}", align="left", style="dim")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("proportional memory (PSS)", "framework alone", "over trims", "of it: shared weights"):
        table.add_column(column, justify="left" if column.startswith("prop") else "right")
    for number, row in enumerate(zip(alone, over, weights, strict=True), start=1):
        table.add_row(f"process {number}", *(format_bytes(held.pss) for held in row))
    sums = [total(column) for column in (alone, over, weights)]
    table.add_section()
    table.add_row("sum", *(format_bytes(held.pss) for held in sums), style="bold")
    console().print(table)
    say(
        f"The weights of all {len(over)} together take {sums[2].pss / image_bytes:.3f} of one copy "
        f"({format_bytes(image_bytes)}); {format_bytes(sums[2].written)} of them were copied by writing.\n"
    )


def summary(done: Sequence[Compared]) -> None:
    """The last table: how much sooner each model answers."""
    console().rule("[bold]Summary", align="left", style="dim")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for column in ("first answer", COLD, WARM, "model ready", COLD, WARM):
        table.add_column(column.replace(" ", "\n"), justify="right")
    table.add_column("answers\n")
    for compared in done:
        cells = [cell for seconds in (compared.total_s, compared.ready_s) for cell in _factors(seconds)]
        table.add_row(compared.model.name, *cells, _in_a_word(compared.agreement()))
    console().print(table)
    say(
        "First answer: from the start of a fresh process. Model ready: the model's part of that, without interpreter, "
        "import and inference. Times are the framework's alone, factors say how much faster trims is."
    )


def _in_a_word(agreement: Agreement) -> str:
    if agreement.identical:
        return "same bits"
    return "rounded" if agreement.equal else "DIFFERENT"


def _factors(seconds: Callable[[str], float]) -> list[str]:
    alone = seconds(ALONE)
    return [format_seconds(alone), *(f"{alone / seconds(way):.2f}x" for way in (COLD, WARM))]


def requests(rows: Sequence[tuple[Compared, Sequence[tuple[float, float]]]]) -> None:
    """Print how long an endpoint's clients wait if no process runs the model.

    `rows` has seconds of the request and of its compute.
    """
    table = Table(
        title="An HTTP request when no process runs the model: an isolated process answers", title_justify="left"
    )
    for column in ("model", "fresh process, framework alone", "request", "of it compute", "sooner"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for compared, taken in rows:
        alone, asked = compared.total_s(ALONE), median(each for each, _ in taken)
        cells = [format_seconds(alone), format_seconds(asked), format_seconds(median(each for _, each in taken))]
        table.add_row(compared.model.title, *cells, f"{alone / asked:.0f}x")
    console().print(table)
