"""Commands about addresses: pull, push, prune, lock."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from trims.cli.completion import MODELS, completed
from trims.cli.connect import admin
from trims.cli.output import loading, note, say, say_done, say_json
from trims.core.errors import CallerError, ModelExistsError, ModelNotFoundError, TrimsError
from trims.core.units import format_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from trims.control import Admin

#: Seconds in which the daemon gives up a pull whose client was interrupted, and between two looks.
_GIVEN_UP_S, _LOOK_S = 10.0, 0.1


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    text = "fetch a model from its address, and make it ready"
    pull = commands.add_parser("pull", help=text, description=f"{text}; an address is registered first")
    pull.set_defaults(run=_pull)
    completed(pull.add_argument("model", help="a registered model, or an address (hf://, https://, s3://)"), MODELS)
    pull.add_argument("--name", help="name for an address (default: made from it)")
    pull.add_argument("--update", action="store_true", help="take what lies there now, also if it was something else")
    add_prove(pull)
    pull.add_argument("--json", action="store_true", help="print JSON")
    text = "write a model's image to a bucket, for other machines to pull"
    push = commands.add_parser("push", help=text, description=text)
    push.set_defaults(run=_push)
    completed(push.add_argument("model", help="a registered model"), MODELS)
    push.add_argument("address", help="s3://bucket/prefix, gs:// or az://")
    push.add_argument("--replace", action="store_true", help="take the place of another model that lies there")
    push.add_argument("--json", action="store_true", help="print JSON")
    text = "print what was found at the addresses of models, for a trims.lock beside their manifests"
    lock = commands.add_parser("lock", help=text, description=text)
    lock.set_defaults(run=_lock)
    completed(lock.add_argument("model", nargs="*", help="registered models (default: all with an address)"), MODELS)
    text = "remove downloads that no registered model has, and parts of pushes that were killed"
    prune = commands.add_parser("prune", help=text, description=f"{text}; a hub's cache is left alone")
    prune.set_defaults(run=_prune)
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    prune.add_argument("--json", action="store_true", help="print JSON")


def add_prove(parser: argparse.ArgumentParser) -> None:
    """Add the flag that says when files of a hub's cache are proven."""
    text = "hash files that lay in a hub's cache already behind their first readers, or first (default: the setting)"
    parser.add_argument("--prove", choices=("behind", "first"), help=text)


@contextlib.contextmanager
def interruptible(daemon: Admin, name: str | None, address: str) -> Iterator[None]:
    """Say what an interrupt of a block leaves, which fetches an address: the daemon gives up what no one asks for.

    Args:
        daemon: Is asked what it still has.
        name: Name of the model; by default made from the address.
        address: Perhaps the path of a file, of which an interrupt leaves nothing to say.
    """
    from trims.manifests.addresses import is_address, name_for, without_secret

    try:
        yield
    except KeyboardInterrupt:
        if not is_address(address):
            raise
        name, address = name or name_for(address), without_secret(address)
        until_s = time.monotonic() + _GIVEN_UP_S
        while time.monotonic() < until_s:
            try:
                daemon.show(name)
            except ModelNotFoundError:
                note(f"interrupted: {name} is not registered; what has come is kept for `trims pull {address}`")
                break
            except TrimsError as error:
                note(f"interrupted: {error}")
                break
            time.sleep(_LOOK_S)
        else:
            note(f"interrupted: {name} stays registered, as it was before, or as another client asks for it")
        raise


def _pull(options: argparse.Namespace) -> None:
    from trims.manifests.addresses import is_address  # what it needs takes longer to import than other commands

    with admin(options.runtime_dir) as daemon:
        if options.name is not None and not is_address(options.model):
            raise CallerError("--name is for an address; a registered model has its name")
        name, is_new = _registered(daemon, options) if is_address(options.model) else (options.model, False)
        prove = options.prove == "first"
        with interruptible(daemon, name, options.model), loading(name, options.json) as shown:
            done = daemon.pull(name, update=options.update, prove=prove, forget=is_new, on_progress=shown)
    if options.json:
        say_json({"model": name, "note": done.note})
        return
    say(f"{name}: {done.note}")
    say("success")


def _registered(daemon: Admin, options: argparse.Namespace) -> tuple[str, bool]:
    """Register an address; return the name that stands for it, and whether it is new. Raises CallerError."""
    from trims.manifests.addresses import check_address, name_for, normal

    check_address(normal(options.model))
    try:
        return daemon.add(options.model, name=options.name, lazy=True).name, True
    except ModelExistsError as error:
        name = options.name or name_for(options.model)
        known = daemon.show(name)
        if known.manifest.get("artifact", {}).get("uri") == normal(options.model):
            return str(name), False
        raise ModelExistsError(f"{error}; give another name (--name)") from error


def _push(options: argparse.Namespace) -> None:
    with admin(options.runtime_dir) as daemon, loading(options.model, options.json) as shown:
        done = daemon.push(options.model, options.address, replace=options.replace, on_progress=shown)
    say_done(options, f"{options.model}: {done.note}\nsuccess", model=options.model, address=options.address,
             note=done.note)  # fmt: skip


def _lock(options: argparse.Namespace) -> None:
    import json

    from trims.manifests.addresses import has_secret

    with admin(options.runtime_dir) as daemon:
        names = options.model or [model.opened_as for model in daemon.models() if not model.problem]
        shown = [daemon.show(name) for name in names]
    signed = [model for model in shown if has_secret(str(model.manifest["artifact"].get("uri", "")))]
    if options.model and signed:
        raise CallerError(
            f"the address of {signed[0].name} has a signature or key in its query, and is not for sharing"
        )
    for model in signed:
        note(f"{model.name} is left out: its address has a signature or key in its query")
    shown = [model for model in shown if model not in signed]
    entries = {model.manifest["artifact"]["uri"]: json.loads(model.lock_json) for model in shown if model.lock_json}
    without = [model.name for model in shown if not model.lock_json]
    if options.model and without:
        raise CallerError(f"{without[0]} was not fetched from an address, so there is nothing to state of it")
    say_json({"trims_lock": 1, "addresses": entries})


def _prune(options: argparse.Namespace) -> None:
    with admin(options.runtime_dir) as daemon:
        done = daemon.prune(dry_run=options.dry_run)
    if options.json:
        say_json({"removed": list(done.removed), "nbytes": done.nbytes, "uploads": list(done.uploads)})
        return
    for folder in done.removed:
        note(folder)
    for each in done.uploads:
        note(f"parts of a push that was killed: {each}")
    would = "would be removed" if options.dry_run else "removed"
    say(f"{len(done.removed)} downloads {would}, {format_bytes(done.nbytes)}")
