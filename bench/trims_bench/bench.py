"""Runs of scenarios, one after the other: printed as a table, kept in a database, and exported as raw results."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.cli.output import console, note, say, table
from trims.core.errors import CallerError, TrimsError
from trims.core.units import format_seconds
from trims_bench.child import ChildError, end_by_signals
from trims_bench.endpoint import EndpointError
from trims_bench.evaluation.database.connection import check_installed
from trims_bench.evaluation.stack import commit, stack
from trims_bench.report import readable
from trims_bench.repository import ClientsMissingError, MxnetMissingError
from trims_bench.scenarios import NAMES, chosen, parts_of
from trims_bench.scenarios.base import Setup

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from trims_bench.measuring import Comparison, Figure
    from trims_bench.scenarios import Part

_DATABASE = "evaluations.db"


def main(options: argparse.Namespace) -> int:
    """Run what was asked for: 0 if every bar is reached, 3 if one is missed, 4 if a figure could not be taken."""
    if options.names == ["list"]:
        for scenario in NAMES:
            for name, part in parts_of(scenario).items():
                say(f"{scenario:<9} {name:<16} {part.title}")
        return 0
    try:
        wanted = chosen(options.names)
    except ValueError as error:
        raise CallerError(str(error)) from error
    check_installed()  # and not after minutes of measuring
    if options.out is not None:
        _make(options.out)
    end_by_signals()
    with _work(options.work) as work:
        database = options.database or (
            "" if options.out is None else f"sqlite:///{options.out.absolute() / _DATABASE}"
        )
        setup = Setup(work, options.quick, options.repeat, options.resident, database)
        taken = (_take(name, part, setup, options.out) for name, (_, part) in wanted.items())
        figures = [figure for figure in taken if figure is not None]
    _print(figures)
    if len(figures) < len(wanted):
        return 4
    return 0 if all(figure.reached for figure in figures) else 3


def _make(folder: Path) -> None:
    """Now, not after minutes of measuring."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CallerError(f"raw results cannot be kept in {folder}: {error.strerror}; give --out a folder") from error


@contextlib.contextmanager
def _work(folder: Path | None) -> Iterator[Path]:
    """The folder given, which is kept, or a temporary one."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="trims-bench-") as made:
        yield Path(made)


def _take(name: str, part: Part, setup: Setup, out: Path | None) -> Figure | None:
    """One figure; None, and a line that says why, if it cannot be taken here."""
    began = time.monotonic()
    try:
        with console().status(f"{name}: {part.title} ..."):
            figure = part.run(setup)
    except (MxnetMissingError, ClientsMissingError, ChildError, EndpointError, TrimsError) as error:
        note(f"{name}: not measured: {error}")
        return None
    say(f"{name}: {'reached' if figure.reached else 'NOT reached'}, in {format_seconds(time.monotonic() - began)}")
    kept = record(figure, quick=setup.quick)
    if out is not None:
        path = out / f"{kept['date'][:10]}-{figure.name}.json"
        path.write_text(json.dumps(kept, separators=(",", ":")) + "\n")
    keep(kept, setup.database)
    return figure


def record(figure: Figure, *, quick: bool) -> dict[str, Any]:
    """Return a figure with all that is needed to judge it later."""
    return {
        "figure": figure.to_json(),
        "machine": stack(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": quick,
    }


def keep(kept: dict[str, Any], database: str) -> None:
    """Keep a record in a database: with the evaluation that its figure was read from, else as one of its own."""
    from trims_bench.evaluation.database.evaluations import Evaluations
    from trims_bench.evaluation.records import FIGURE, Order, new_id

    found = kept["figure"]["evaluation"]
    with Evaluations(database) as evaluations:
        if not found:
            found = new_id()
            name = f"bench {kept['figure']['name']}"
            about = {"scenario": name, "quick": kept["quick"]}
            order = Order(found, name, "", (), (), 0, scenario=about, began_unix_s=time.time(), stack=stack())
            evaluations.begin(order, 0)
            evaluations.end(found, {})
        evaluations.add_document(found, FIGURE, 0, kept)


def _print(figures: Sequence[Figure]) -> None:
    rows = [[f"{figure.name}: {each.what}", *_cells(each)] for figure in figures for each in figure.comparisons]
    if rows:
        table(("compared", "trims>", "other side>", "value>", "bar>", ""), rows)
    for figure in figures:
        for text in figure.notes:
            say(f"{figure.name}: {text}")


def _cells(compared: Comparison) -> list[str]:
    sides = [_side(side.unit, side.median, side.interval) for side in compared.sides[:2]] + ["", ""]
    bar = "" if compared.bar is None else f"{compared.bar.relation} {compared.bar.limit:g} {compared.unit}"
    verdict = {None: "", True: "reached", False: "NOT reached"}[compared.reached]
    return [*sides[:2], f"{compared.value:.3g} {compared.unit}", bar, verdict]


def _side(unit: str, median: float, interval: tuple[float, float]) -> str:
    low, high = (readable(unit, each) for each in interval)
    return readable(unit, median) if low == high else f"{readable(unit, median)} ({low} .. {high})"
