"""The `trims reload` and `trims unload` commands: a model's predictors and weights, as the endpoint has them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    text = "start a model's predictors again, with its code and files as they are now"
    _add(commands, "reload", text, _reload)
    text = "end a model's predictors and free its weights; it stays registered, and its next request loads it"
    _add(commands, "unload", text, _unload)


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], None],
) -> None:
    parser = commands.add_parser(name, help=text, description=text)
    parser.add_argument("model", help="a registered model")
    parser.add_argument("--endpoint", help="URL of an endpoint (default: the daemon's)")
    parser.add_argument("--token-file", type=Path, help="file with the operator's token, if the endpoint needs one")
    parser.add_argument("--certificate", help="file with the endpoint's certificate, for https")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--deadline-s", type=float, default=600.0, help="seconds to wait (default: 600)")
    parser.set_defaults(run=run)


def _reload(options: argparse.Namespace) -> None:
    from trims.cli.output import say_done
    from trims.control import admin

    if _at_endpoint(options, "load"):
        text = f"{options.model} is loaded: a predictor with its code and files as they are now is ready"
        say_done(options, text, model=options.model, predictor=True)
        return
    with admin(options.runtime_dir) as daemon:
        replica = daemon.load(options.model, deadline_s=options.deadline_s)
    text = f"{options.model} is at {replica.place}"
    say_done(options, text, model=options.model, predictor=False, place=replica.place)


def _unload(options: argparse.Namespace) -> None:
    from trims.cli.output import say_done
    from trims.control import admin

    if not _at_endpoint(options, "unload"):
        with admin(options.runtime_dir) as daemon:
            daemon.evict(options.model, drain=True)
    say_done(options, f"{options.model} is unloaded; its next request loads it", model=options.model, loaded=False)


def _at_endpoint(options: argparse.Namespace, verb: str) -> bool:
    """Ask the endpoint; False if there is none, so that no predictors have the model."""
    from trims.cli.output import note
    from trims.core.errors import ConfigError, DaemonAwayError
    from trims.wire.address import default_runtime_dir
    from trims.wire.endpoint_file import read_address
    from trims_predictors.cli.run_request import Away, HttpEndpoint
    from trims_predictors.endpoint.settings import read_token

    if not 0 < options.deadline_s < math.inf:
        raise ConfigError(f"--deadline-s is {options.deadline_s:g}; it must be more than 0 seconds")
    found = read_address(options.runtime_dir or default_runtime_dir()) if options.endpoint is None else None
    url = options.endpoint or (found.url if found is not None else None)
    if url is None:
        note("there is no endpoint, so no predictors: only the weights are meant")
        return False
    token = None if options.token_file is None else read_token(options.token_file)
    try:
        HttpEndpoint(url, token, options.certificate, options.deadline_s).repository(options.model, verb)
    except Away as error:
        if options.endpoint is not None:
            raise DaemonAwayError(f"{error}; start one, or leave --endpoint out") from error
        note(f"{error}; only the weights are meant")
        return False
    return True
