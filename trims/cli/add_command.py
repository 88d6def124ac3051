"""The command `add`: register manifests, artifacts and functions."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.cli.completion import FILES, MODELS, PLACES, completed
from trims.cli.connect import admin
from trims.cli.output import as_json, loading, note, note_unconfirmed, say, say_json
from trims.cli.predictors import say_prepared
from trims.cli.transfer_commands import add_prove, interruptible
from trims.core.errors import CallerError
from trims.core.functions import FORMS
from trims.core.units import format_bytes
from trims.wire.address import default_runtime_dir

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from trims.control import Loading, Model

#: Flags that have a number, and the fields of the manifest that they state. See `trims.control.stated_fields.FLAGS`.
_NUMBERS = (
    ("--instances", "instances", "N", "predictors that may run at once (default: one, and more while requests wait)"),
    ("--threads", "threads", "N", "threads of one predictor (default: as many as processors)"),
    ("--hot", "hot", "N", "predictors that have loaded the model ahead of need (default: by demand)"),
    ("--deadline", "deadline_s", "S", "seconds that one run may take"),
    ("--keep-alive", "keep_alive_s", "S", "seconds that an idle predictor stays (default: until its slot is needed)"),
    ("--max-batch-size", "max_batch_size", "N", "rows that requests are put together to (default: never)"),
    ("--batch-delay", "batch_delay_s", "S", "seconds that a request waits for others (default: 0)"),
)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "register a manifest, or any checkpoint by its path"
    add = commands.add_parser("add", help=text, description=text)
    add.set_defaults(run=_register_model)
    add.add_argument("--json", action="store_true", help="print JSON")
    text = (
        "a manifest (.yaml), an artifact, the folder of a Hugging Face model, an address (hf://, https://, s3://), or, "
        "with --model, a function (.py)"
    )
    completed(add.add_argument("source", nargs="+", help=f"{text}; several are added one after the other"), FILES)
    add.add_argument("--name", help="name for one artifact or function (default: from its file, or folder)")
    text = "replace the manifest of the same version; one of a new version replaces what the plain name leads to"
    add.add_argument("--replace", action="store_true", help=text)
    text = "of a torch checkpoint, the key of the state dict (net, or ema.model), where it is not found"
    add.add_argument("--state-key", metavar="KEY", help=text)
    text = "what the folder of a Hugging Face model answers, such as fill-mask (default: what the folder says)"
    add.add_argument("--task", help=text)
    text = "run the Python files of such a folder, if its config.json names some"
    add.add_argument("--trust-remote-code", action="store_true", help=text)
    add.add_argument("--lazy", action="store_true", help="do not convert now; the first load will")
    add_prove(add)
    text = "the registered model that a function gets as its first argument"
    completed(add.add_argument("--model", metavar="MODEL", help=text), MODELS)
    text = f"what a function gets its model as: {', '.join(FORMS)} (default: {FORMS[0]})"
    add.add_argument("--as", dest="form", metavar="FORM", help=text)
    text = "name of the function in its file (default: handler)"
    add.add_argument("--handler", metavar="NAME", help=text)
    _add_fields(add)
    commands.add_parser("register", parents=[add], add_help=False, help="the same as add").set_defaults(
        run=_register_model
    )


def _add_fields(add: argparse.ArgumentParser) -> None:
    """Add the flags that state fields of the manifest."""
    fields = add.add_argument_group("fields of the manifest", "for artifacts and functions; a manifest has them itself")
    fields.add_argument("--version", help="registered beside others of the name (default: 0.0.0)")
    for flag, field, metavar, text in _NUMBERS:
        fields.add_argument(flag, dest=field, type=_number, metavar=metavar, help=text)
    text = "where an open without a place leads: cpu, disk, gpu:0 (default: wherever the image lies)"
    completed(fields.add_argument("--place", help=text), PLACES)
    fields.add_argument("--truncate", action="store_true", help="cut texts that are longer than the model takes")
    text = "of the predictor, such as top_k=3; the value as in YAML; repeatable"
    fields.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help=text)
    text = "of the artifact's conversion, such as prepack=shared; the value as in YAML; repeatable"
    fields.add_argument("--artifact-option", action="append", default=[], metavar="NAME=VALUE", help=text)


def _number(text: str) -> float | str:
    """Return a number; or the text as it is, which the check of the manifest names."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the manifest that flags state. Raises CallerError."""
    predictor = {field: getattr(options, field) for _, field, *_ in _NUMBERS if getattr(options, field) is not None}
    chosen = _options("--option", options.option)
    if options.truncate and chosen.setdefault("truncation", True) is not True:
        raise CallerError("--truncate cuts texts, and `--option truncation` says another thing; leave one of them out")
    made: dict[str, Any] = {}
    if options.version is not None:
        made["version"] = options.version
    if options.place is not None:
        made["residency"] = {"place": options.place}
    if predictor or chosen:
        made["predictor"] = {**predictor, **({"options": chosen} if chosen else {})}
    if options.artifact_option:
        made["artifact"] = {"options": _options("--artifact-option", options.artifact_option)}
    return made


@contextmanager
def _errors_by_flag(fields: Mapping[str, Any]) -> Iterator[None]:
    """Have errors of a registration name the flags of the fields."""
    from trims.control.stated_fields import by_flag

    try:
        yield
    except CallerError as error:
        named = by_flag(error, fields)
        if named is error:
            raise
        raise named from error


def _options(flag: str, stated: list[str]) -> dict[str, Any]:
    """Return NAME=VALUE as a mapping, each value as YAML has it. Raises CallerError."""
    import yaml

    made = {}
    for each in stated:
        name, equals, value = each.partition("=")
        if not name or not equals or name in made:
            raise CallerError(f"{flag} is {each!r:.80}; write NAME=VALUE, each name once")
        try:
            made[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise CallerError(f"{flag} {name} is no YAML: {error!s:.200}; put the value in quotes") from error
    return made


def _register_model(options: argparse.Namespace) -> None:
    if len(options.source) > 1 and (options.name is not None or options.state_key is not None):
        flag = "--name" if options.name is not None else "--state-key"
        raise CallerError(f"{flag} is for one artifact, and {len(options.source)} are given")
    models = [
        _add_function(options, each) if _is_function(options, each) else _register_one(options, each)
        for each in options.source
    ]
    if options.json:
        shown = [as_json(model) for model in models]
        say_json(shown if len(shown) > 1 else shown[0])
    elif not options.lazy:
        say_prepared([model.name for model in models], options.runtime_dir or default_runtime_dir())


def _is_function(options: argparse.Namespace, source: str) -> bool:
    """Return whether a source is a function. Raises CallerError for one without its model, and the other way round."""
    flags = {"--model": options.model, "--as": options.form, "--handler": options.handler}
    stated = [flag for flag, value in flags.items() if value is not None]
    if not source.endswith(".py"):
        if stated:
            raise CallerError(f"{stated[0]} is for a function, and {source} is no Python file (.py)")
        return False
    if options.model is None:
        raise CallerError(f"{source} is a function if anything: name its model (--model NAME, --as torch)")
    return True


def _add_function(options: argparse.Namespace, source: str) -> Model:
    from trims.control.functions import function_manifest

    flags = {"--state-key": options.state_key, "--task": options.task, "--prove": options.prove}
    flags["--trust-remote-code"] = options.trust_remote_code or None
    for flag in (flag for flag, value in flags.items() if value is not None):
        raise CallerError(f"{flag} is for an artifact, and {source} is a function; leave it out")
    fields = _fields(options)
    with admin(options.runtime_dir) as daemon, _errors_by_flag(fields):
        made = function_manifest(
            Path(source),
            daemon.show(options.model),
            form=options.form,
            handler=options.handler,
            name=options.name,
            fields=fields,
        )
        model = daemon.add(made, replace=options.replace, lazy=True)
    if not options.json:
        say(f"registered {model.name}, a function of {options.model}")
    return model


def _register_one(options: argparse.Namespace, source: str) -> Model:
    from trims.manifests.addresses import is_address  # what these need takes longer to import than other commands
    from trims.manifests.manifest import parse_manifest
    from trims.manifests.runs import task_by_signs, why_not_run

    notes, fields = [""], _fields(options)

    def follow(now: Loading) -> None:
        notes.append(now.note)
        shown(now)

    with (
        admin(options.runtime_dir) as daemon,
        interruptible(daemon, options.name, source),
        loading(options.name or source, options.json) as shown,
        _errors_by_flag(fields),
    ):
        model = daemon.add(
            source if is_address(source) else Path(source),
            name=options.name,
            replace=options.replace,
            lazy=options.lazy,
            state_key=options.state_key,
            task=options.task,
            trust_remote_code=options.trust_remote_code,
            fields=fields,
            prove=options.prove == "first",
            on_progress=follow,
        )
    if not options.lazy and is_address(source):
        note(f"{model.name}: {notes[-1]}")
    elif not options.lazy and any((each.place, each.state) == ("disk", "sealed") for each in model.replicas):
        note(f"{model.name}: image of {format_bytes(model.image_bytes)} on disk")
    elif not options.lazy:
        note(f"{model.name}: not converted yet, because its last image is still read; the next load does it")
    if why := why_not_run(parse_manifest(model.manifest, model.origin), model.format, model.files):
        note(f"{model.name}: {why}")
    if task := task_by_signs(model.manifest):
        note(
            f"{model.name}: its config.json names no architecture; its task is {task} by other signs (--task: another)"
        )
    note_unconfirmed(model.unconfirmed)
    if not options.json:
        say(f"registered {_registered(model)}")
    return model


def _registered(model: Model) -> str:
    """Return what was registered, and how to switch to it if the plain name leads to another version."""
    if len(model.versions) < 2:
        return model.name
    beside = ", ".join(each for each in model.versions if each != model.version)
    leads = f"{model.name} leads to it"
    if not model.is_default:
        leads = f"{model.name} leads where it led, until `trims alias {model.name} {model.version}`"
    return f"{model.name} {model.version} beside {beside}; {leads}"
