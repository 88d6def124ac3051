"""The `trims call` command: invoke a handler on this machine, and report what its cold and warm starts cost."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from trims_predictors.cli.endpoint import add_environments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from trims_predictors.cli.invocations import Invocation, Invoked

_HANDLER = "the file with the handler, and its name after a colon (default: handler)"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "invoke a function, `def handler(model, event)`, cold and warm"
    call = commands.add_parser("call", help=text, description=text)
    call.add_argument("handler", metavar="FILE.py[:NAME]", help=_HANDLER)
    call.add_argument("--model", required=True, help="a registered model: the handler's first argument")
    forms = "weights (name -> view), torch (a module), onnxruntime (a session), mxnet (a block); default: weights"
    call.add_argument("--as", dest="form", default="weights", help=f"what the handler gets the model as: {forms}")
    event = call.add_mutually_exclusive_group()
    event.add_argument(
        "--event", default="{}", help="the handler's second argument, as JSON, or - for standard input (default: {})"
    )
    event.add_argument("--event-file", help="the file that holds it, or - for standard input")
    text = "a header that comes with the event, as `ce-id: 1`, for CloudEvents as an endpoint takes them; repeatable"
    call.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help=text)
    call.add_argument("--repeat", type=int, default=0, metavar="N", help="warm invocations after the first cold one")
    text = (
        "cold invocations after the first one, each in a new process; the template has learned what that one imported"
    )
    call.add_argument("--cold-repeat", type=int, default=0, metavar="N", help=text)
    call.add_argument("--compare", action="store_true", help="run the handler in a fresh Python process, too")
    text = "seconds that the handler may take to get ready, and to answer one event (default: 60)"
    call.add_argument("--timeout", type=float, default=60.0, metavar="S", help=text)
    text = "modules that the template imports beside the framework, with commas between"
    call.add_argument("--preload", default="", metavar="MODULES", help=text)
    call.add_argument("--json", action="store_true", help="print the answer and all times as JSON")
    add_environments(call)
    call.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    import json

    from trims_client.faas import check_form

    from trims.cli.output import note, say_json
    from trims.core.errors import ConfigError
    from trims.environments.environment_store import EnvironmentStore
    from trims.formats.conversion.interpreter_selection import InterpreterSelection
    from trims.wire.address import default_runtime_dir
    from trims_predictors.cli.endpoint import environments_dir_of, environments_in
    from trims_predictors.cli.invocations import Call, invoke

    if not 0 < options.timeout < math.inf:
        raise ConfigError(f"--timeout is {options.timeout:g}; it must be more than 0 seconds")
    for flag, times in (("--repeat", options.repeat), ("--cold-repeat", options.cold_repeat)):
        if times < 0:
            raise ConfigError(f"{flag} is {times}; it must be 0 or more")
    call = Call(
        runtime_dir=options.runtime_dir or default_runtime_dir(),
        handler=handler_in(options.handler),
        model=options.model,
        form=check_form(options.form),
        event=_event(options),
        repeat=options.repeat,
        cold_repeat=options.cold_repeat,
        compare=options.compare,
        timeout_s=options.timeout,
        preload=tuple(each for each in options.preload.split(",") if each),
        picker=InterpreterSelection(
            environments_in(options.environments), EnvironmentStore(environments_dir_of(options))
        ),
    )
    found = invoke(call)
    answer = _checked(found.cold.answer)
    for module in found.not_imported:
        note(f"the template could not import {module}; the handler was run without")
    if found.forgot is not None:
        note(f"what the template had learned is left out, because it cannot be forked with that: {found.forgot}")
    if found.unfit is not None:
        note(f"the template cannot be forked, so the cold start is that of a fresh process: {found.unfit}")
    if options.json:
        say_json(_as_json(found, answer))
        return
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    sys.stdout.flush()
    for line in report_lines(found):
        note(line)


def handler_in(text: str) -> str:
    """`file.py:name`, absolute. Raises CallerError for a file that is not there, and for what names no file."""
    from trims.core.errors import CallerError

    path, colon, name = text.rpartition(":") if not text.endswith(".py") else (text, ":", "handler")
    if not colon or not path.endswith(".py") or not name.isidentifier():
        raise CallerError(f"{text!r:.200} names no handler; write FILE.py:NAME, such as my_function.py:handler")
    if not os.path.isfile(path):
        raise CallerError(f"there is no file {path!r:.200}")
    return f"{os.path.abspath(path)}:{name}"


def _event(options: argparse.Namespace) -> Sequence[bytes]:
    """Return the event as JSON; or the parts of a CloudEvent. Raises CallerError."""
    import json

    from trims_client.events import cloud_event, parse_event

    from trims.core.errors import CallerError

    if "-" in (options.event, options.event_file):
        text = sys.stdin.buffer.read()
    elif options.event_file is None:
        text = os.fsencode(options.event)
    else:
        try:
            text = Path(options.event_file).read_bytes()
        except OSError as error:
            raise CallerError(f"the event cannot be read from {options.event_file!r}: {error.strerror}") from error
    headers = _headers(options.header)
    event = cloud_event(headers, text)
    if event is not None:
        event.value()  # refused before a process starts
        return event.elements()
    if headers:
        raise CallerError("--header states no CloudEvent; one has ce-id, ce-source, ce-type and ce-specversion")
    try:
        return [json.dumps(parse_event(text), allow_nan=False).encode()]
    except ValueError as error:
        raise CallerError(f"the event is no JSON: {error}") from error


def _headers(stated: Sequence[str]) -> list[tuple[str, str]]:
    from trims.core.errors import CallerError

    found = []
    for each in stated:
        name, colon, value = each.partition(":")
        name = name.strip().lower()
        if not colon or not (name == "content-type" or name.startswith("ce-")):
            raise CallerError(f"--header is {each!r:.80}; write a header of a CloudEvent, such as `ce-id: 1`")
        found.append((name, value.strip()))
    return found


def report_lines(found: Invoked) -> Sequence[str]:
    """Return lines that report the invocations, with a table of the stages."""
    from trims.cli.output import table_lines
    from trims.core.units import format_seconds

    def cell(name: str, of: Sequence[Invocation]) -> str:
        known = [each.stages[name] for each in of if name in each.stages]
        return format_seconds(median(known)) if known else ""

    def titled(name: str, of: Sequence[Invocation]) -> tuple[str, Sequence[Invocation]]:
        return (name if len(of) == 1 else f"{name}, median of {len(of)}"), of

    columns: list[tuple[str, Sequence[Invocation]]] = [("first cold" if found.later else "cold", [found.cold])]
    columns += [titled(name, of) for name, of in (("later cold", found.later), ("warm", found.warm)) if of]
    if found.fresh is not None:
        columns.append(("fresh process", [found.fresh]))
    names = list(dict.fromkeys(name for _, of in columns for each in of for name in each.stages))
    rows = [[name.removesuffix("_s"), *(cell(name, of) for _, of in columns)] for name in names]
    rows.append(["total", *(format_seconds(median(each.total_s for each in of)) for _, of in columns)])
    resident = "already there" if found.cold.resident else "loaded for it"
    knew = f", with {_modules(found.knew)} learned before" if found.knew else ""
    return [
        f"cold: {found.cold.start}; weights at {found.cold.place}, {resident}",
        f"its template took {format_seconds(found.template_s)}, once for all functions{knew}",
        *_learned_lines(found),
        *table_lines(["stage", *(f"{name}>" for name, _ in columns)], rows, None),
    ]


def _learned_lines(found: Invoked) -> list[str]:
    """Say what the first cold invocation paid for that later ones do not."""
    if found.not_learned is not None:
        return [f"the template cannot learn what the first process imported: {found.not_learned}"]
    if found.learned:
        (package, _), *_ = Counter(name.partition(".")[0] for name in found.learned).most_common(1)
        which = f"imported {_modules(len(found.learned))}, most of {package}, which the template has learned"
        when = "the later ones find them there" if found.later else "the next cold start finds them there"
        return [f"the first process {which}: {when}"]
    if found.unlearned:
        which = f"imported {_modules(found.unlearned)} that a template would learn"
        return [f"the first process {which}; --cold-repeat N measures cold starts with them"]
    return []


def _modules(count: int) -> str:
    return "1 module" if count == 1 else f"{count} modules"


def _checked(text: bytes) -> Any:
    """The answer, which can be printed. Raises PredictorError."""
    import json

    from trims.core.errors import PredictorError

    try:
        answer = json.loads(text)
        json.dumps({"answer": answer}, indent=2)
    except (ValueError, RecursionError) as error:
        raise PredictorError(f"the answer cannot be printed: {error}") from error
    return answer


def _as_json(found: Invoked, answer: Any) -> dict[str, Any]:
    def one(invocation: Invocation) -> dict[str, Any]:
        return {
            "start": invocation.start, "total_s": invocation.total_s, "stages": dict(invocation.stages),
            **({} if invocation.resident is None else {"resident": invocation.resident, "place": invocation.place}),
        }  # fmt: skip

    return {
        "answer": answer,
        "template_s": found.template_s,
        "cold": one(found.cold),
        "later_cold": [one(each) for each in found.later],
        "learned": list(found.learned),
        "learned_before": found.knew,
        "warm": [one(each) for each in found.warm],
        **({} if found.fresh is None else {"fresh": one(found.fresh)}),
    }
