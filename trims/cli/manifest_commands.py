"""Commands about manifests that need no daemon: manifest init, validate."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trims.cli.completion import FILES, completed
from trims.cli.output import say, say_json
from trims.core.errors import CallerError

if TYPE_CHECKING:
    import argparse

    from trims.formats.conversion.interpreter_selection import InterpreterSelection


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    text = "write a manifest for an artifact"
    manifest = commands.add_parser("manifest", help=text, description=text)
    verbs = manifest.add_subparsers(dest="verb", metavar="VERB", required=True)
    text = "look into a file or folder, and write a manifest with what is found; needs no daemon"
    init = verbs.add_parser("init", help=text, description=text)
    completed(init.add_argument("path", help="an artifact, or a folder with one"), FILES)
    init.add_argument("--name", help="name of the model (default: from the file, or folder)")
    text = "file to write, or - for standard output (default: NAME.yaml in this folder)"
    completed(init.add_argument("-o", "--output", metavar="FILE", help=text), FILES)
    init.add_argument("--force", action="store_true", help="write over a file that is there")
    init.set_defaults(run=_init)
    text = "check manifests without a daemon: fields, files, formats, frameworks"
    validate = commands.add_parser("validate", help=text, description=text)
    completed(validate.add_argument("file", nargs="+", type=Path, help="a manifest"), FILES)
    validate.add_argument("--json", action="store_true", help="print JSON")
    validate.set_defaults(run=_validate)


def _picker() -> InterpreterSelection:
    """Return what picks environments as a daemon with these settings would."""
    from trims.daemon.config import build_config
    from trims.environments.environment_store import EnvironmentStore
    from trims.formats.conversion.interpreter_selection import InterpreterSelection

    config = build_config({})
    return InterpreterSelection(config.environments, EnvironmentStore(config.environments_dir))


def _init(options: argparse.Namespace) -> None:
    from trims.control.manifest_writing import written_manifest
    from trims.manifests.addresses import is_address

    if is_address(options.path):
        raise CallerError(f"{options.path} is an address, which `trims add` registers; name a file or folder here")
    name, text = written_manifest(Path(options.path), options.name, _picker().has)
    if options.output == "-":
        sys.stdout.write(text)
        return
    target = Path(options.output or f"{name}.yaml")
    if target.suffix not in (".yaml", ".yml"):
        raise CallerError(f"{target} is no name of a manifest; end it with .yaml")
    _write(target, text, force=options.force)
    say(f"wrote {target}; `trims add {target}` registers {name}")


def _write(target: Path, text: str, *, force: bool) -> None:
    """Write a file that is not there, or over one. Raises CallerError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if force else os.O_EXCL)
    try:
        fd = os.open(target, flags, 0o644)
    except FileExistsError:
        raise CallerError(f"{target} exists; choose another name (-o FILE), or write over it (--force)") from None
    except OSError as error:
        raise CallerError(f"{target} cannot be written: {error.strerror}") from error
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def _validate(options: argparse.Namespace) -> int:
    from trims.control.validation import as_json, check_manifests

    found = check_manifests(options.file, _picker())
    if options.json:
        say_json([as_json(each) for each in found])
    for each in found if not options.json else ():
        if not each.problems:
            say(f"{each.file}: ok")
        for problem in each.problems:
            say(f"{each.file}:{problem.line}: {f'{problem.field}: ' if problem.field else ''}{problem.message}")
    return 1 if any(each.problems for each in found) else 0
