"""Running scenarios one after the other: prints a table, keeps raw results."""

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
from trims_bench.child import ChildError
from trims_bench.endpoint import EndpointError
from trims_bench.machine import commit, machine, versions
from trims_bench.report import readable
from trims_bench.repository import ClientsMissingError, MxnetMissingError
from trims_bench.runs import WorkerError
from trims_bench.scenarios import NAMES, scenario
from trims_bench.scenarios.base import Setup

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from trims_bench.figures import Comparison, Figure


def main(options: argparse.Namespace) -> int:
    """Run what was asked for: 0 if every bar is reached, 3 if one is missed, 4 if a figure could not be taken."""
    if options.names == ["list"]:
        for name in NAMES:
            say(f"{name:<12} {scenario(name).TITLE}")
        return 0
    names = _chosen(options.names)
    if options.out is not None:
        _make(options.out)
    with _work(options.work) as work:
        setup = Setup(work, quick=options.quick, repeat=options.repeat, resident_bytes=options.resident)
        figures = [figure for name in names if (figure := _take(name, setup, options.out)) is not None]
    _print(figures)
    if len(figures) < len(names):
        return 4
    return 0 if all(figure.reached for figure in figures) else 3


def _make(folder: Path) -> None:
    """Now, not after minutes of measuring."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CallerError(f"raw results cannot be kept in {folder}: {error.strerror}; give --out a folder") from error


def _chosen(names: Sequence[str]) -> Sequence[str]:
    if "all" in names:
        return NAMES
    for name in names:
        if name not in NAMES:
            raise CallerError(f"there is no benchmark {name!r}; there are {', '.join(NAMES)}, and all")
    return names


@contextlib.contextmanager
def _work(folder: Path | None) -> Iterator[Path]:
    """The folder given, which is kept, or a temporary one."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="trims-bench-") as made:
        yield Path(made)


def _take(name: str, setup: Setup, out: Path | None) -> Figure | None:
    """One figure; None, and a line that says why, if it cannot be taken here."""
    began = time.monotonic()
    try:
        with console().status(f"{name}: {scenario(name).TITLE} ..."):
            figure = scenario(name).run(setup)
    except (MxnetMissingError, ClientsMissingError, ChildError, EndpointError, WorkerError, TrimsError) as error:
        note(f"{name}: not measured: {error}")
        return None
    say(f"{name}: {'reached' if figure.reached else 'NOT reached'}, in {format_seconds(time.monotonic() - began)}")
    if out is not None:
        _keep(figure, setup, out)
    return figure


def record(figure: Figure, *, quick: bool) -> dict[str, Any]:
    """A figure with all that is needed to judge it later."""
    return {
        "figure": figure.to_json(),
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": quick,
    }


def _keep(figure: Figure, setup: Setup, out: Path) -> None:
    kept = record(figure, quick=setup.quick)
    path = out / f"{kept['date'][:10]}-{figure.name}.json"
    path.write_text(json.dumps(kept, separators=(",", ":")) + "\n")


def _print(figures: Sequence[Figure]) -> None:
    rows = [[f"{figure.name}: {each.what}", *_cells(each)] for figure in figures for each in figure.comparisons]
    if rows:
        table(("compared", "trims>", "other side>", "value>", "bar>", ""), rows)
    for figure in figures:
        for text in figure.notes:
            say(f"{figure.name}: {text}")


def _cells(compared: Comparison) -> list[str]:
    sides = [readable(side.unit, side.median) for side in compared.sides[:2]] + ["", ""]
    bar = "" if compared.bar is None else f"{compared.bar.relation} {compared.bar.limit:g} {compared.unit}"
    verdict = {None: "", True: "reached", False: "NOT reached"}[compared.reached]
    return [*sides[:2], f"{compared.value:.3g} {compared.unit}", bar, verdict]
