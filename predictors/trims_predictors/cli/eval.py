"""The `trims eval` and `trims report` commands: what starts of a model cost, and evaluations that were made before."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims_predictors.cli.endpoint import add_environments
from trims_predictors.cli.eval_scenario import add_options, check_absent, evaluate_scenario

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from trims_predictors.deployment.key import DeploymentKey
    from trims_predictors.evaluation.evaluation import Sample
    from trims_predictors.evaluation.journal import Asked

_MOST_REPEATS = 10_000


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    text = "measure where the time of a model's start goes: from each tier, in each way"
    evaluate = commands.add_parser("eval", help=text, description=text)
    evaluate.add_argument("model", nargs="?", help="a registered model")
    text = (
        "of its requests, as for trims run (default: made from the model's inputs, from a stated seed); with "
        "--scenario further models"
    )
    evaluate.add_argument("input", nargs="*", help=text)
    evaluate.add_argument("--dtype", action="append", default=[], metavar="[NAME=]TYPE", help="see trims run")
    text = "tiers to start from, with commas between: file, disk, cpu, gpu (default: file,disk,cpu)"
    evaluate.add_argument("--from", dest="tiers", default="file,disk,cpu", help=text)
    text = "ways to start, with commas between: fresh, template, hot (default: all)"
    evaluate.add_argument("--how", dest="ways", default="fresh,template,hot", help=text)
    evaluate.add_argument("--repeat", type=int, default=10, help="samples of each (default: 10)")
    evaluate.add_argument("--resume", metavar="ID", help="go on with an evaluation that was interrupted")
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    add_environments(evaluate)
    add_options(evaluate)
    evaluate.set_defaults(run=_evaluate)
    text = "show evaluations that were made"
    report = commands.add_parser("report", help=text, description=text)
    report.add_argument("id", nargs="*", help="ids, or what they begin with (default: list all)")
    report.add_argument(
        "--explain", action="store_true", help="two evaluations side by side, with what differs in the stacks"
    )
    report.add_argument("--json", action="store_true", help="print JSON")
    report.add_argument("--folder", type=Path, help="where evaluations are (default: below the daemon's state folder)")
    report.set_defaults(run=_report)


def _evaluate(options: argparse.Namespace) -> int:
    if options.scenario is not None:
        return evaluate_scenario(options)[1]
    check_absent(options)
    _evaluate_starts(options)
    return 0


def _evaluate_starts(options: argparse.Namespace) -> None:
    import asyncio

    from trims.cli.output import note, say, say_json
    from trims.core.errors import CallerError
    from trims_predictors.evaluation import report

    if (options.model is None) == (options.resume is None):
        raise CallerError("name a model to evaluate, or with --resume the evaluation to go on with")
    tiers, ways = _chosen(options)
    if not 1 <= options.repeat <= _MOST_REPEATS:
        raise CallerError(f"--repeat is {options.repeat}; it must be from 1 to {_MOST_REPEATS:,}")
    asked, samples, unreachable = asyncio.run(_run(options, tiers, ways))
    for tier, why in unreachable.items():
        note(f"nothing was started from {tier}: {why}")
    if options.json:
        say_json(_as_json(asked, samples))
    else:
        say(f"evaluation {asked.id} of {asked.model}: {asked.stack['processors']} x {asked.stack['processor']}")
        say("\n".join(report.lines(samples)))


def _chosen(options: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    from trims.core.errors import CallerError
    from trims_predictors.evaluation.tiers import TIERS
    from trims_predictors.evaluation.ways import WAYS

    found = []
    for flag, text, known in (("--from", options.tiers, TIERS), ("--how", options.ways, WAYS)):
        named = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
        wrong = [each for each in named if each not in known]
        if wrong or not named:
            raise CallerError(
                f"{flag} {text!r:.80}: {wrong[0] if wrong else 'nothing'!r} is none of {', '.join(known)}"
            )
        found.append(named)
    return found[0], found[1]


async def _run(
    options: argparse.Namespace, tiers: tuple[str, ...], ways: tuple[str, ...]
) -> tuple[Asked, list[Sample], dict[str, str]]:
    from trims.control import aadmin
    from trims.environments.environment_store import EnvironmentStore
    from trims.formats.conversion.interpreter_selection import InterpreterSelection
    from trims.trace import spans
    from trims.wire.address import default_runtime_dir
    from trims_predictors.cli.endpoint import environments_dir_of, environments_in
    from trims_predictors.cli.run_inputs import RunInputs
    from trims_predictors.deployment.deployments import Deployments
    from trims_predictors.evaluation.journal import Journal
    from trims_predictors.evaluation.session import evaluating

    runtime_dir = options.runtime_dir or default_runtime_dir()
    picker = InterpreterSelection(environments_in(options.environments), EnvironmentStore(environments_dir_of(options)))
    async with aadmin(runtime_dir) as daemon:
        state_dir = Path((await daemon.status()).health.state_dir)
        journal = Journal(state_dir / "evaluations")
        spans.configure(state_dir / "trace", "evaluation", everything=True)
        try:
            deployments = Deployments(daemon, picker, _keep)
            inputs = RunInputs(options.model or "", options.dtype)
            return await evaluating(
                daemon, deployments, journal, runtime_dir, state_dir / "trace", model=options.model,
                resume=options.resume, tiers=tiers, ways=ways, repeats=options.repeat,
                make=(lambda types: inputs.read(options.input, types)) if options.input else None, progress=_progress,
            )  # fmt: skip
        finally:
            spans.stop()
            journal.close()


def _keep(key: DeploymentKey) -> None:
    """Do nothing when a deployment is replaced: an evaluation ends its own processes."""


def _progress(done: int, total: int, sample: Sample) -> None:
    if sys.stderr.isatty():
        took = sample.why_not or f"{sample.seconds * 1e3:.1f} ms"
        sys.stderr.write(
            f"\r\033[K{done}/{total} {sample.tier} {sample.way}: {took:.60}" + ("\n" if done == total else "")
        )
        sys.stderr.flush()


def _report(options: argparse.Namespace) -> None:
    import time

    from trims.cli.output import say, say_json
    from trims.core.errors import CallerError
    from trims_predictors.evaluation import journal, report
    from trims_predictors.evaluation.evaluation import starts

    folder = options.folder or _folder(options)
    if options.explain and len(options.id) != 2:
        raise CallerError("--explain needs the ids of two evaluations")
    if not options.id:
        found = [journal.read(path) for path in journal.files(folder)]
        if options.json:
            say_json([{"id": asked.id, "model": asked.model, "samples": len(samples)} for asked, samples in found])
            return
        for asked, samples in reversed(found):
            began = time.strftime("%Y-%m-%d %H:%M", time.localtime(asked.began_unix_s))
            wanted = len(starts(asked.tiers, asked.ways)) * asked.repeats
            say(f"{asked.id}  {began}  {len(samples):4} of {wanted} samples  {asked.model}")
        return
    read = [journal.read(journal.find(folder, each)) for each in options.id]
    if options.json:
        say_json([_as_json(asked, samples) for asked, samples in read])
        return
    for asked, samples in read:
        say(f"evaluation {asked.id} of {asked.model}")
        say("\n".join(report.lines(samples)) + "\n")
    if options.explain:
        say("\n".join(_explained(*read)))


def _explained(one: tuple[Asked, Sequence[Sample]], other: tuple[Asked, Sequence[Sample]]) -> list[str]:
    from trims_predictors.evaluation import report, stack

    before = {(row.tier, row.way): row.seconds.value for row in report.rows(one[1])}
    text = []
    for row in report.rows(other[1]):
        was = before.get((row.tier, row.way))
        if was is not None:
            text.append(
                f"{row.tier} {row.way}: {was * 1e3:.1f} -> {row.seconds.value * 1e3:.1f} ms "
                f"({row.seconds.value / was:.2f}x)"
            )
    found = stack.differences(dict(one[0].stack), dict(other[0].stack))
    if one[0].key != other[0].key:
        found.insert(0, "model: its manifest, its artifact or the code beside it changed")
    return [*text, *(["what differs:", *(f"  {each}" for each in found)] if found else ["the stacks are equal"])]


def _as_json(asked: Asked, samples: Sequence[Sample]) -> dict[str, Any]:
    from dataclasses import asdict

    from trims_predictors.evaluation import report

    return {
        **asdict(asked), "rows": [report.as_json(row) for row in report.rows(samples)],
        "answers_differ": report.answers_differ(samples), "discarded": report.discarded(samples),
    }  # fmt: skip


def _folder(options: argparse.Namespace) -> Path:
    from trims.control import admin
    from trims.core.errors import DaemonAwayError
    from trims.trace.spans import default_folder

    try:
        with admin(options.runtime_dir) as daemon:
            return Path(daemon.status().health.state_dir) / "evaluations"
    except DaemonAwayError:
        return Path(default_folder()).parent / "evaluations"
