"""The `trims report` command: evaluations that were made, in a terminal, for programs, or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trims_bench.cli.eval import DATABASE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from trims_bench.evaluation.database.evaluations import Evaluations
    from trims_bench.evaluation.records import Evaluated


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "show evaluations that were made"
    report = commands.add_parser("report", help=text, description=text)
    report.add_argument("id", nargs="*", help="ids, or what they begin with (default: list all)")
    report.add_argument("--model", metavar="NAME", help="list the evaluations of one model")
    text = "two evaluations side by side, with what differs in the stacks"
    report.add_argument("--explain", action="store_true", help=text)
    form = report.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print CSV")
    form.add_argument("--html", type=Path, metavar="FILE", help="write a page that needs no other file")
    form.add_argument("--png", type=Path, metavar="FILE", help="write the picture of one evaluation")
    report.add_argument("--trace", metavar="ID", help="show the trace of a sample, also when its files are gone")
    report.add_argument("--remove", action="store_true", help="remove these evaluations")
    report.add_argument("--database", default="", metavar="URL", help=DATABASE)
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> None:
    from trims.core.errors import CallerError
    from trims_bench.evaluation.database.connection import find_database
    from trims_bench.evaluation.database.evaluations import Evaluations

    if options.explain and len(options.id) != 2:
        raise CallerError("--explain needs the ids of two evaluations")
    if options.png and (len(options.id) != 1 or options.explain):
        raise CallerError("--png needs the id of one evaluation")
    if options.model and options.id:
        raise CallerError("--model chooses what is listed; leave it out, or the ids")
    if options.remove and (not options.id or options.explain or options.html or options.csv or options.png):
        raise CallerError("--remove needs ids, and nothing that shows them")
    if options.trace and (options.id or options.model or options.html or options.csv or options.png):
        raise CallerError("--trace shows one trace: leave out ids and other forms than --json")
    with Evaluations(find_database(options.database, options.runtime_dir), patience_s=0) as kept:
        if options.trace:
            _show_trace(kept, options.trace, as_json=options.json)
        elif options.remove:
            for each in [kept.find(each) for each in options.id]:
                kept.remove(each)
        elif not options.id and not (options.csv or options.html):
            _list(options, kept)
        else:
            ids = options.id or [each.id for each in kept.summaries(options.model)]
            _show(options, [kept.read(each) for each in ids])


def _list(options: argparse.Namespace, kept: Evaluations) -> None:
    import time

    from trims.cli.output import say, say_json

    found = kept.summaries(options.model)
    if options.json:
        say_json([each.as_json() for each in found])
        return
    for each in reversed(found):
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.began_unix_s))
        state = "" if each.ended else "  not ended"
        say(f"{each.id}  {began}  {each.samples:4} of {each.wanted} samples  {each.scenario or each.model}{state}")


def _show_trace(kept: Evaluations, trace_id: str, *, as_json: bool) -> None:
    from trims_predictors.cli.trace import show

    from trims.core.errors import CallerError

    trace = kept.trace(trace_id)
    if trace is None:
        raise CallerError(f"no evaluation has a sample with the trace {trace_id!r:.80}")
    show(trace, 0.0, as_json=as_json)


def _show(options: argparse.Namespace, found: Sequence[Evaluated]) -> None:
    from trims.cli.output import say, say_json
    from trims_bench.cli.eval import heading
    from trims_bench.evaluation.report import explain, rows, text

    if options.html or options.png:
        _check_folder(options.html or options.png)
    if options.html:
        from trims_bench.evaluation.report.page import as_html

        _write(options.html, as_html(found, compare=options.explain).encode())
    elif options.png:
        from trims_bench.evaluation.report.plots import picture

        _write(options.png, picture(found[0], "png"))
    elif options.csv:
        from trims_bench.evaluation.report.tables import as_csv

        say(as_csv(found).rstrip("\n"))
    elif options.json:
        said = [rows.as_json(each) for each in found]
        say_json({"evaluations": said, "explained": explain.as_json(*found)} if options.explain else said)
    else:
        for each in found:
            say(heading(each))
            say("\n".join(text.lines(each)) + "\n")
        if options.explain:
            say("\n".join(explain.lines(*found)))


def _check_folder(path: Path) -> None:
    import os

    from trims.core.errors import ConfigError

    if not os.access(path.absolute().parent, os.W_OK):
        raise ConfigError(f"{path} cannot be written: no such folder, or it is not yours; choose another file")


def _write(path: Path, content: bytes) -> None:
    from trims.cli.output import note
    from trims.core.errors import ConfigError

    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; choose another file") from error
    note(f"wrote {path}")
