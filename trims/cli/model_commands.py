"""Commands about models: add, list, ps, show, load, evict, pin, unpin, rm, watch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trims.cli.control import control
from trims.cli.output import (
    REPLICA_COLUMNS,
    as_json,
    loading,
    note,
    replica_row,
    say,
    say_devices,
    say_json,
    say_json_line,
    table,
    until,
)
from trims.core.errors import CallerError
from trims.core.units import format_bytes, format_seconds
from trims.registry.base import read_manifest
from trims.wire import trims_pb2 as pb

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    add = _add(commands, "add", "register a manifest, or any checkpoint by its path", _register_model, json=True)
    add.add_argument("source", type=Path, help="a manifest (.yaml) or an artifact")
    add.add_argument("--name", help="name for an artifact (default: from its file name)")
    add.add_argument("--replace", action="store_true", help="replace another manifest of the same name")
    add.add_argument("--lazy", action="store_true", help="do not convert now; the first load will")
    commands.add_parser("register", parents=[add], add_help=False, help="the same as add").set_defaults(
        run=_register_model
    )
    _add(commands, "list", "all registered models", _list, json=True)
    _add(commands, "ps", "what is resident, where, how large, held by whom, until when", _ps, json=True)
    _model(_add(commands, "show", "everything about one model", _show, json=True))
    load = _model(
        _add(commands, "load", "have a model loaded before anybody asks for it", _load, json=True), place=True
    )
    load.add_argument("--deadline-s", type=float, help="seconds to wait for the load and for room")
    evict = _model(_add(commands, "evict", "free a model's memory; it stays registered", _evict, json=True), place=True)
    evict.add_argument("--drain", action="store_true", help="let leases run out first")
    evict.add_argument("--all-tiers", action="store_true", help="the disk image too, so that it is converted anew")
    _model(_add(commands, "pin", "never evict a model; loads it", _pin), place=True)
    _model(_add(commands, "unpin", "take a pin back", _unpin), place=True)
    _model(_add(commands, "rm", "forget a model and free its images", _remove))
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


def _model(parser: argparse.ArgumentParser, *, place: bool = False) -> argparse.ArgumentParser:
    parser.add_argument("name", help="a registered model")
    if place:
        parser.add_argument("--place", default="", help="cpu, disk or gpu:0 (default: what the manifest says)")
    return parser


def manifest_for(artifact: Path, name: str | None) -> dict[str, Any]:
    """A manifest for a bare artifact: its absolute path under a name made from the file's."""
    if not artifact.exists():
        raise CallerError(f"{artifact} does not exist")
    stem = artifact.name.split(".")[0] if name is None else name
    made = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in stem.lower()).strip("._-")
    return {"name": name or made, "artifact": {"path": str(artifact.absolute())}}


def _register_model(options: argparse.Namespace) -> None:
    source: Path = options.source
    if source.suffix in (".yaml", ".yml"):
        if options.name is not None:
            raise CallerError(f"--name is for artifacts; {source} is a manifest and names its model itself")
        raw, origin = read_manifest(source)
    else:
        raw, origin = manifest_for(source, options.name), ""
    with control(options.runtime_dir) as door:
        request = pb.RegisterRequest(manifest_yaml=yaml.safe_dump(raw), origin=origin, replace=options.replace)
        model = door.Register(request)
        if not options.lazy:
            done = loading(model.name, door.Load(pb.LoadRequest(name=model.name, place="disk")), quiet=options.json)
            note(f"{model.name}: image of {format_bytes(done.total_bytes)} on disk")
        model = door.Describe(pb.NameRequest(name=model.name))
    if options.json:
        say_json(as_json(model))
    else:
        say(f"registered {model.name}")


def _list(options: argparse.Namespace) -> None:
    with control(options.runtime_dir) as door:
        models = door.List(pb.Empty())
    if options.json:
        say_json(as_json(models)["models"])
        return
    rows = [
        [
            model.name,
            model.version,
            model.framework,
            model.format,
            format_bytes(model.image_bytes) if model.image_bytes else "",
            ", ".join(replica.place for replica in model.replicas if replica.state == "sealed"),
        ]
        for model in models.models
    ]
    columns = ("model", "version", "framework", "format", "image>", "resident at")
    table("", columns, rows, empty="no models are registered; `trims add` registers one")


def _ps(options: argparse.Namespace) -> None:
    with control(options.runtime_dir) as door:
        resident = door.Resident(pb.Empty())
    if options.json:
        say_json(as_json(resident)["replicas"])
        return
    table("", REPLICA_COLUMNS, map(replica_row, resident.replicas), empty="nothing is resident")
    say_devices(resident.devices)


def _show(options: argparse.Namespace) -> None:
    with control(options.runtime_dir) as door:
        model = door.Describe(pb.NameRequest(name=options.name))
    if options.json:
        say_json(as_json(model))
        return
    for label, text in (
        ("model", f"{model.name} {model.version}"),
        ("about", model.description),
        ("license", model.license),
        ("framework", model.framework),
        ("format", model.format),
        ("image key", model.key),
        ("image", format_bytes(model.image_bytes) if model.image_bytes else "not converted yet"),
    ):
        if text:
            say(f"{label:<10} {text}")
    for replica in model.replicas:
        say(
            f"\nat {replica.place}: {replica.state}, {replica.leases} leases, opened {replica.uses} times, "
            f"filled in {format_seconds(replica.cost_s)}, stays until {until(replica)}"
        )
        say(f"  {replica.location}")
        for line in replica.story:
            say(f"  {line}")


def _load(options: argparse.Namespace) -> None:
    request = pb.LoadRequest(name=options.name, place=options.place)
    if options.deadline_s is not None:
        request.deadline_s = options.deadline_s
    with control(options.runtime_dir) as door:
        done = loading(options.name, door.Load(request), quiet=options.json)
    if options.json:
        say_json(as_json(done.replica))
    else:
        say(f"{options.name} is at {done.replica.place}: {format_bytes(done.total_bytes)}")


def _evict(options: argparse.Namespace) -> None:
    place = "" if options.all_tiers else options.place or "cpu"
    with control(options.runtime_dir) as door:
        reply = door.Evict(pb.EvictRequest(name=options.name, place=place, drain=options.drain))
    if options.json:
        say_json(as_json(reply))
        return
    if not reply.freed and not reply.draining:
        say(f"{options.name} is not resident{f' at {place}' if place else ''}")
    for where in reply.freed:
        say(f"{options.name} is freed at {where}")
    for where in reply.draining:
        say(f"{options.name} goes from {where} when its last lease closes")


def _pin(options: argparse.Namespace) -> None:
    with control(options.runtime_dir) as door:
        door.Pin(pb.PinRequest(name=options.name, place=options.place))
        loading(
            options.name,
            door.Load(pb.LoadRequest(name=options.name, place=options.place or "cpu")),
            quiet=False,
        )
    say(f"{options.name} is pinned at {options.place or 'cpu'}")


def _unpin(options: argparse.Namespace) -> None:
    with control(options.runtime_dir) as door:
        door.Unpin(pb.PinRequest(name=options.name, place=options.place))
    say(f"{options.name} is not pinned at {options.place or 'cpu'} any more")


def _remove(options: argparse.Namespace) -> None:
    with control(options.runtime_dir) as door:
        door.Unregister(pb.NameRequest(name=options.name))
    say(f"{options.name} is forgotten")


def _watch(options: argparse.Namespace) -> None:
    with control(options.runtime_dir) as door:
        for change in door.Watch(pb.Empty()):
            if options.json:
                say_json_line(as_json(change))
            else:
                names = ", ".join(change.names) or change.key[:16]
                say(f"{names} at {change.place}: {change.old} -> {change.new} ({change.why})")
