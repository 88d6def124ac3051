"""The command `alias`: which version a name leads to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.cli.completion import MODELS, completed
from trims.cli.connect import admin
from trims.cli.output import as_json, note_unconfirmed, say, say_json, table
from trims.core.errors import CallerError

if TYPE_CHECKING:
    import argparse

    from trims.control import Aliases


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "show or switch which version a name leads to"
    parser = commands.add_parser("alias", help=text, description=text)
    parser.set_defaults(run=_alias)
    completed(parser.add_argument("name", help="a model, or name@label: a label is made if it is not there"), MODELS)
    text = "version that it leads to from now on; without one, and the options below, all of the model is shown"
    parser.add_argument("version", nargs="?", default="", help=text)
    parser.add_argument("--back", action="store_true", help="lead to what it led to before its last switch")
    parser.add_argument("--remove", action="store_true", help="remove the label")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _alias(options: argparse.Namespace) -> None:
    if bool(options.version) + options.back + options.remove > 1:
        raise CallerError(
            "an alias is switched to a version, switched --back, or removed (--remove): give one of these"
        )
    with admin(options.runtime_dir) as daemon:
        found = daemon.alias(options.name, options.version, back=options.back, remove=options.remove)
    note_unconfirmed(found.unconfirmed)
    if options.json:
        say_json(as_json(found))
    elif options.remove:
        say(f"{options.name} is removed")
    elif options.version or options.back:
        say(f"{options.name} leads to {_version_of(options.name, found)}")
    else:
        _show(found)


def _show(found: Aliases) -> None:
    rows = [
        [
            f"{found.name}@{version}",
            ", ".join(_called(found, each.label) for each in found.aliases if each.version == version),
        ]
        for version in found.versions
    ]
    table(("version", "what leads to it"), rows, empty="")
    for each in found.aliases:
        if each.previous:
            say(f"{_called(found, each.label)} led to {each.previous} before: `--back` switches it back")


def _version_of(name: str, found: Aliases) -> str:
    label = name.partition("@")[2]
    return next(each.version for each in found.aliases if each.label == label)


def _called(found: Aliases, label: str) -> str:
    return f"{found.name}@{label}" if label else found.name
