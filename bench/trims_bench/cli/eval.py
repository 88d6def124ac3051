"""The `trims eval` command: what starts of a model cost, from each tier, in each way."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from trims_predictors.cli.endpoint import add_environments

from trims_bench.cli.eval_scenario import add_options, check_absent, evaluate_scenario

if TYPE_CHECKING:
    import argparse

    from trims.trace.levels import Level
    from trims_bench.evaluation.records import Evaluated, Sample
    from trims_bench.evaluation.session import Place, Wish

_STATUS_INTERRUPTED = 130
DATABASE = "where evaluations are kept: sqlite:////FILE or postgresql://USER:PASSWORD@HOST/NAME (default: $TRIMS_EVALUATIONS, else a file in the daemon's state folder)"  # noqa: E501


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "measure where the time of a model's start goes: from each tier, in each way"
    evaluate = commands.add_parser("eval", help=text, description=text)
    evaluate.add_argument("model", nargs="?", default="", help="a registered model")
    text = (
        "of its requests, as for trims run (default: made from the model's inputs, from a stated seed); with "
        "--scenario further models"
    )
    evaluate.add_argument("input", nargs="*", help=text)
    evaluate.add_argument("--dtype", action="append", default=[], metavar="[NAME=]TYPE", help="see trims run")
    text = "tiers to start from, with commas between: cloud, file, disk, cpu, gpu (default: file,disk,cpu)"
    evaluate.add_argument("--from", dest="tiers", help=text)
    text = "ways to start, with commas between: alone, fresh, template, spare, hot, settled (default: all)"
    evaluate.add_argument("--how", dest="ways", help=text)
    evaluate.add_argument("--repeat", type=int, help="samples of each (default: 10)")
    text = "sizes of requests to a running predictor, with commas between (default: 1); of a load one (default: 8)"
    evaluate.add_argument("--batch", dest="batches", metavar="N,N", help=text)
    text = "seconds without a request before a predictor counts as settled (default: 2)"
    evaluate.add_argument("--idle", type=float, metavar="S", help=text)
    text = "run a hot predictor also at each level down to framework, library, system or hardware: its layers"
    evaluate.add_argument("--level", help=text)
    evaluate.add_argument("--resume", default="", metavar="ID", help="go on with an evaluation that was interrupted")
    evaluate.add_argument("--id", default="", help="of the evaluation (default: made from the time)")
    evaluate.add_argument("--database", default="", metavar="URL", help=DATABASE)
    form = evaluate.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    text = "print each sample as a line of JSON the moment it was taken, or how far a load is"
    form.add_argument("--json-lines", action="store_true", help=text)
    add_environments(evaluate)
    add_options(evaluate)
    evaluate.set_defaults(run=_evaluate)


def _evaluate(options: argparse.Namespace) -> int:
    if options.scenario is not None:
        return evaluate_scenario(options)
    check_absent(options)
    return _evaluate_starts(options)


def _evaluate_starts(options: argparse.Namespace) -> int:
    import asyncio

    from trims.cli.output import note, say, say_json
    from trims_bench.evaluation.report import rows, text
    from trims_bench.evaluation.session import evaluate_model

    progress, wish = _say_sample if options.json_lines else _progress, _wish(options)
    try:
        evaluated = asyncio.run(evaluate_model(wish, _place(options), progress))
    except KeyboardInterrupt:
        note(f"interrupted; `trims eval --resume {wish.resume or wish.evaluation_id}` goes on")
        return _STATUS_INTERRUPTED
    if options.json:
        say_json(rows.as_json(evaluated))
    elif not options.json_lines:
        say(heading(evaluated))
        say("\n".join(text.lines(evaluated)))
    return 0 if rows.rows(evaluated.samples) else 1  # for scripts: nothing was measured


def heading(evaluated: Evaluated) -> str:
    """Return the line that a report begins with."""
    order = evaluated.order
    return f"evaluation {order.id} of {order.model}: {order.stack['processors']} x {order.stack['processor']}"


def _wish(options: argparse.Namespace) -> Wish:
    from trims_predictors.cli.run_inputs import RunInputs

    from trims.core.errors import CallerError
    from trims_bench.evaluation.records import new_id
    from trims_bench.evaluation.session import Wish

    chosen: dict[str, Any] = {
        "tiers": None if options.tiers is None else _names(options.tiers),
        "ways": None if options.ways is None else _names(options.ways),
        "repeats": options.repeat,
        "batches": None if options.batches is None else _numbers(options.batches),
        "idle_s": options.idle,
        "level": None if options.level is None else _level(options.level),
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    if options.resume and (given or options.id):
        raise CallerError("--resume goes on with what was asked then: leave out all that says what to measure")
    inputs = RunInputs(options.model, options.dtype)
    make = (lambda types: inputs.read(options.input, types)) if options.input else None
    identity = options.id or ("" if options.resume else new_id())
    return Wish(options.model, options.resume, make_inputs=make, evaluation_id=identity, **given)


def _level(text: str) -> Level:
    from trims.core.errors import CallerError
    from trims.trace.levels import Level

    try:
        return Level.parse(text)
    except ValueError as error:
        raise CallerError(f"--level: {error}") from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))


def _numbers(text: str) -> tuple[int, ...]:
    from trims.core.errors import CallerError

    try:
        return tuple(dict.fromkeys(int(each) for each in text.split(",")))
    except ValueError as error:
        raise CallerError(f"--batch {text!r:.80} is no list of numbers such as 1,2,4") from error


def _place(options: argparse.Namespace) -> Place:
    from trims_predictors.cli.endpoint import environments_dir_of, environments_in

    from trims_bench.evaluation.session import Place

    return Place(
        options.runtime_dir, environments_in(options.environments), environments_dir_of(options), options.database
    )


def _say_sample(done: int, total: int, sample: Sample) -> None:
    import json
    from dataclasses import asdict

    sys.stdout.write(json.dumps({"done": done, "total": total, "sample": asdict(sample)}) + "\n")
    sys.stdout.flush()


def _progress(done: int, total: int, sample: Sample) -> None:
    if sys.stderr.isatty():
        took = sample.why_not or f"{sample.seconds * 1e3:.1f} ms"
        sys.stderr.write(
            f"\r\033[K{done}/{total} {sample.tier} {sample.way}: {took:.60}" + ("\n" if done == total else "")
        )
        sys.stderr.flush()
