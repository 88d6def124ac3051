"""Commands about models: list, ps, show, load, evict, pin, unpin, rm, watch. See `add_command`, `alias_command`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trims.cli.completion import MODELS, PLACES, completed
from trims.cli.connect import admin
from trims.cli.output import (
    REPLICA_COLUMNS,
    as_json,
    loading,
    note,
    note_unconfirmed,
    replica_row,
    say,
    say_devices,
    say_done,
    say_json,
    say_json_line,
    say_transfers,
    table,
    until,
)
from trims.cli.predictors import say_predictors
from trims.core.functions import FORMS
from trims.core.units import format_bytes, format_seconds
from trims.wire.address import default_runtime_dir
from trims.wire.endpoint_file import read_address

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from trims.control import Model, TensorInfo


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    listed = _add(commands, "list", "all registered models", _list, json=True)
    text = "also where each model comes from, and downloads that no model has"
    listed.add_argument("--all", action="store_true", help=text)
    text = "print only what models can be called: names, versions and labels"
    listed.add_argument("--names", action="store_true", help=text)
    ps = _add(commands, "ps", "what is resident, where, how large, held by which process, until when", _ps, json=True)
    text = "file with the operator's token, if the endpoint needs one to say which predictors it has"
    ps.add_argument("--token-file", type=Path, help=text)
    ps.add_argument("--templates", action="store_true", help="the templates that `trims exec` starts programs from")
    show = _model(_add(commands, "show", "everything about one model", _show, json=True))
    show.add_argument("--manifest", action="store_true", help="print its manifest, as YAML that `trims add` takes")
    load = _model(_add(commands, "load", "have a model loaded before it is needed", _load, json=True), place=True)
    load.add_argument("--deadline-s", type=float, help="seconds to wait for the load and for room")
    evict = _add(commands, "evict", "free a model's memory; it stays registered", _evict, json=True)
    _model(evict, place=True, what="a model, an absolute path, or the beginning of an image key as `trims ps` shows it")
    evict.add_argument("--drain", action="store_true", help="let leases run out first")
    evict.add_argument(
        "--all-tiers", action="store_true", help="the disk image too, so that the artifact is converted again"
    )
    _model(_add(commands, "pin", "never evict a model; loads it", _pin, json=True), place=True)
    _model(_add(commands, "unpin", "take a pin back", _unpin, json=True), place=True)
    what = "a model that has one version, or name@version"
    remove = _model(_add(commands, "rm", "forget a model and free its images", _remove, json=True), what=what)
    remove.add_argument("--all-versions", action="store_true", help="forget all versions of the model, and its labels")
    _add(commands, "watch", "print changes of state until interrupted", _watch, json=True)


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int | None],
    *,
    json: bool = False,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _model(
    parser: argparse.ArgumentParser,
    *,
    place: bool = False,
    what: str = "a registered model: name, name@version or name@label",
) -> argparse.ArgumentParser:
    completed(parser.add_argument("name", help=what), MODELS)
    if place:
        text = "cpu, disk or gpu:0 (default: what the manifest says)"
        completed(parser.add_argument("--place", default="", help=text), PLACES)
    return parser


def _list(options: argparse.Namespace) -> None:
    with admin(options.runtime_dir) as daemon:
        models = daemon.models()
        unused = daemon.prune(dry_run=True) if options.all and not options.json else None
    if options.json:
        say_json([as_json(model) for model in models])
        return
    if options.names:
        for each in _callable(models):
            say(each)
        return
    aliased = any(len(model.versions) > 1 or model.aliases[1:] for model in models)
    rows = [
        [
            model.name,
            model.version,
            *([", ".join(model.aliases)] if aliased else []),
            model.framework,
            model.format,
            format_bytes(model.image_bytes) if model.image_bytes else "",
            ", ".join(replica.place for replica in model.replicas if replica.state == "sealed"),
            *([_origin(model)] if options.all else []),
        ]
        for model in models
        if not model.problem
    ]
    columns = (
        "model", "version", *(("opened as",) if aliased else ()), "framework", "format", "image>", "resident at",
        *(("from",) if options.all else ()),
    )  # fmt: skip
    table(columns, rows, empty="no models are registered; `trims add` registers one")
    for model in models:
        if model.problem:
            note(f"{model.name} cannot be read: {model.problem}")
    if unused is not None and unused.removed:
        say(f"\ndownloads that no model has, {format_bytes(unused.nbytes)} (`trims prune` removes them):")
        for folder in unused.removed:
            say(f"  {folder}")


def _callable(models: Sequence[Model]) -> list[str]:
    """Return everything that models can be called, sorted: a version is named where there are several."""
    versions = [f"{model.name}@{model.version}" for model in models if len(model.versions) > 1]
    aliases = [each for model in models for each in model.aliases]
    return sorted({*versions, *aliases, *(model.name for model in models)})


def _origin(model: Model) -> str:
    """Return where a model comes from: its address, path, package or builder."""
    artifact = model.manifest.get("artifact", {})
    named = artifact.get("uri") or artifact.get("path") or artifact.get("model")
    if named:
        from trims.manifests.addresses import without_secret

        return without_secret(str(named))
    package, builder = artifact.get("package"), artifact.get("builder")
    return f"pkg://{package['name']}/{package['path']}" if package else f"build://{builder['call']}" if builder else ""


def _ps(options: argparse.Namespace) -> None:
    if options.templates:
        from trims.cli.exec_command import say_templates

        say_templates(options)
        return
    with admin(options.runtime_dir) as daemon:
        found, transfers = daemon.residents(), daemon.transfers()
    if options.json:
        replicas, moving = ([as_json(each) for each in some] for some in (found.replicas, transfers))
        say_json({"replicas": replicas, "transfers": moving})
        return
    table(REPLICA_COLUMNS, map(replica_row, found.replicas), empty="nothing is resident")
    say_transfers(transfers)
    say_devices(found.devices)
    address = read_address(options.runtime_dir or default_runtime_dir())
    if address is not None:
        say_predictors(address, options.token_file)


def _show(options: argparse.Namespace) -> None:
    with admin(options.runtime_dir) as daemon:
        model = daemon.show(options.name)
    if options.manifest:
        import yaml

        say(yaml.safe_dump(dict(model.manifest), sort_keys=False, allow_unicode=True).rstrip())
        return
    if options.json:
        say_json(as_json(model))
        return
    for label, text in (
        ("model", f"{model.name} {model.version}"),
        ("versions", ", ".join(model.versions) if len(model.versions) > 1 else ""),
        ("opened as", ", ".join([model.opened_as, *model.aliases]) if len(model.versions) > 1 else ""),
        ("about", model.description),
        ("of model", _model_of(model)),
        ("function", _function_of(model)),
        ("license", model.license),
        ("framework", model.framework),
        ("format", model.format),
        ("image key", model.key),
        ("image", format_bytes(model.image_bytes) if model.image_bytes else "not converted yet"),
        ("files", ", ".join(model.files)),
        ("in memory", model.in_memory),
        ("inputs", _tensors(model.inputs, model)),
        ("outputs", _tensors(model.outputs, model)),
    ):
        if text:
            below = text.replace("\n", f"\n{'':<11}")  # no line of a description begins as one of ours
            say(f"{label:<10} {below}")
    for replica in model.replicas:
        say(
            f"\nat {replica.place}: {replica.state}, {replica.leases} leases, opened {replica.uses} times, "
            f"filled in {format_seconds(replica.cost_s)}, stays until {until(replica)}"
        )
        say(f"  {replica.location}")
        for line in replica.story:
            say(f"  {line}")


def _model_of(model: Model) -> str:
    """Return the model whose artifact a model has, if it has none of its own."""
    artifact = model.manifest.get("artifact")
    return str(artifact.get("model") or "") if isinstance(artifact, dict) else ""


def _function_of(model: Model) -> str:
    """Return the handler of a function, and what it gets its model as; empty for a model that is none."""
    predictor = model.manifest.get("predictor")
    if not isinstance(predictor, dict) or not predictor.get("handler"):
        return ""
    return f"{predictor['handler']}, with the model as {(predictor.get('options') or {}).get('as', FORMS[0])}"


def _tensors(listed: Sequence[TensorInfo], model: Model) -> str:
    """Inputs or outputs, as the graph states them or a run had them."""
    told = ", ".join(f"{each.name} ({each.dtype} {list(each.shape)})" for each in listed)
    return f"{told}, as the first run had them" if told and model.tensors_seen else told


def _load(options: argparse.Namespace) -> None:
    with admin(options.runtime_dir) as daemon, loading(options.name, options.json) as shown:
        replica = daemon.load(options.name, options.place, deadline_s=options.deadline_s, on_progress=shown)
    if options.json:
        say_json(as_json(replica))
    else:
        say(f"{options.name} is at {replica.place}: {format_bytes(replica.nbytes)}")


def _evict(options: argparse.Namespace) -> None:
    place = None if options.all_tiers else options.place or "cpu"
    with admin(options.runtime_dir) as daemon:
        done = daemon.evict(options.name, place, drain=options.drain)
    if options.json:
        say_json(as_json(done))
        return
    if not done.freed and not done.draining:
        say(f"{options.name} is not resident{f' at {place}' if place else ''}")
    for where in done.freed:
        say(f"{options.name} is freed at {where}")
    for where in done.draining:
        say(f"{options.name} goes from {where} when its last lease closes")


def _pin(options: argparse.Namespace) -> None:
    place = options.place or "cpu"
    with admin(options.runtime_dir) as daemon, loading(options.name, options.json) as shown:
        daemon.pin(options.name, place)
        daemon.load(options.name, place, on_progress=shown)
    say_done(options, f"{options.name} is pinned at {place}", model=options.name, place=place, pinned=True)


def _unpin(options: argparse.Namespace) -> None:
    place = options.place or "cpu"
    with admin(options.runtime_dir) as daemon:
        daemon.unpin(options.name, place)
    say_done(
        options, f"{options.name} is not pinned at {place} any more", model=options.name, place=place, pinned=False
    )


def _remove(options: argparse.Namespace) -> None:
    with admin(options.runtime_dir) as daemon:
        note_unconfirmed(daemon.remove(options.name, all_versions=options.all_versions))
    say_done(options, f"{options.name} is forgotten", model=options.name, removed=True)


def _watch(options: argparse.Namespace) -> None:
    with admin(options.runtime_dir) as daemon:
        for change in daemon.watch():
            if options.json:
                say_json_line(as_json(change))
            else:
                names = ", ".join(change.names) or change.key[:16]
                say(f"{names} at {change.place}: {change.old} -> {change.new} ({change.why})")
