"""The `trims endpoint` command. Imports nothing of the endpoint until it is run: every `trims` passes by here."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trims.logs import FORMS, LEVELS
from trims.wire.keepalive import PING_S

if TYPE_CHECKING:
    from trims_predictors.endpoint.settings import EndpointSettings

#: Bytes that `--predictor-memory` must allow: with less, no model loads.
_LEAST_PREDICTOR_BYTES = 16 << 20


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "answer inference requests (Open Inference Protocol) by isolated predictors"
    endpoint = commands.add_parser("endpoint", help=text, description=text)
    _add_doors(endpoint)
    endpoint.add_argument("--predictors", type=int, default=16, help="processes that run models at once (default: 16)")
    endpoint.add_argument("--queue", type=int, default=128, help="requests that may wait for one model (default: 128)")
    text = "predictors at once of a model whose manifest states no `instances`, while requests wait for long"
    endpoint.add_argument("--most-instances", type=int, help=f"{text} (default: 4 for each processor)")
    text = "memory of its own that all of these may take beyond the first of each model"
    endpoint.add_argument("--further-memory", help=f"{text} (default: a quarter of all)")
    text = "seconds an idle predictor stays, or lazy for until its slot is needed (default: 300)"
    endpoint.add_argument("--keep-alive-s", default="300", help=text)
    text = "seconds a predictor may take to load its model, conversion included"
    endpoint.add_argument("--load-deadline-s", default="600", help=f"{text} (default: 600)")
    text = "seconds a request waits for a predictor, if it states no deadline of its own"
    endpoint.add_argument("--queue-deadline-s", default="600", help=f"{text} (default: 600)")
    text = "seconds one run may take, for models whose manifest does not state it"
    endpoint.add_argument("--run-deadline-s", default="60", help=f"{text} (default: 60)")
    _add_waiting(endpoint)
    text = "how far predictors are kept apart: process, user:NAME, namespaces, or auto for the best without privileges"
    endpoint.add_argument("--isolation", default="auto", help=f"{text} (default: auto)")
    text = "folder or file of the daemon that predictors must not see (with namespaces); may be repeated"
    endpoint.add_argument("--hide", type=Path, action="append", default=[], help=text)
    text = "memory of its own that each predictor may take, such as 4GiB, or none for no limit (default: none)"
    endpoint.add_argument("--predictor-memory", default="none", help=text)
    text = "what becomes of a run that no client waits for any more: end or finish (default: end)"
    endpoint.add_argument("--abandoned-runs", choices=("end", "finish"), default="end", help=text)
    text = "system: clients may register POSIX shared memory objects of this user (default: no)"
    endpoint.add_argument("--shared-memory", choices=("no", "system"), default="no", help=text)
    endpoint.add_argument("--max-body", default="256MiB", help="largest request (default: 256MiB)")
    text = "file that keeps what templates have learned to import (default: none, but with `trims serve` one)"
    endpoint.add_argument("--learned", type=Path, help=text)
    text = "frameworks to have predictors ready for at once, with commas between, such as torch,onnxruntime"
    endpoint.add_argument("--preload", default="", help=text)
    text = "environment variables that manifests may name for their predictors, such as MY_LICENSE,MY_REGION"
    endpoint.add_argument("--model-variables", help=f"{text} (default: $TRIMS_MODEL_VARIABLES, else none)")
    text = "the least that is logged (default: info)"
    endpoint.add_argument("--log-level", choices=LEVELS, default="info", help=text)
    text = "text, or json for one object a line (default: text)"
    endpoint.add_argument("--log-format", choices=FORMS, default="text", help=text)
    endpoint.add_argument("--access-log", action="store_true", help="log a line for each request")
    add_environments(endpoint)
    _add_hidden(endpoint)
    endpoint.set_defaults(run=_run)


def _add_doors(endpoint: argparse.ArgumentParser) -> None:
    """Add the options that say where it is reached, and by which clients."""
    endpoint.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    endpoint.add_argument("--port", default="8000", help="for HTTP, 0 for any free one (default: 8000)")
    endpoint.add_argument("--grpc-port", default="8001", help="for gRPC, 0 for any free one, or none (default: 8001)")
    text = "least seconds between two keepalive pings of a client over gRPC, 0 for any"
    endpoint.add_argument("--grpc-ping-s", default=f"{PING_S:g}", help=f"{text} (default: {PING_S:g})")
    endpoint.add_argument("--token-file", type=Path, help="file with the bearer token that requests must bring")
    text = "the daemon's tenants file: each tenant's tokens, models and predictors; needs --token-file"
    endpoint.add_argument("--tenants", type=Path, help=text)
    endpoint.add_argument("--certificate", type=Path, help="TLS certificate, with its chain")
    endpoint.add_argument("--private-key", type=Path, help="its private key")


def _add_waiting(endpoint: argparse.ArgumentParser) -> None:
    """Add the options of processes that wait for requests: templates and spares."""
    text = "seconds a template stays without use, or lazy for until its memory is needed (default: 600)"
    endpoint.add_argument("--template-keep-alive-s", default="600", help=text)
    text = "memory of all templates and spares together, such as 2GiB, or none for no bound (default: none)"
    endpoint.add_argument("--template-memory", default="none", help=text)
    text = "predictors that have loaded a model in steady demand ahead of need, of all models together, or 0"
    endpoint.add_argument("--hot-spares", type=int, default=2, help=f"{text} (default: 2)")
    text = "processes that wait on each GPU with a context and without weights, where its memory has room for them"
    endpoint.add_argument("--device-spares", type=int, default=1, help=f"{text} (default: 1)")


def _add_hidden(endpoint: argparse.ArgumentParser) -> None:
    """Add options for programs of ours that start an endpoint."""
    endpoint.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)  # by the process that starts it
    endpoint.add_argument("--address-dir", help=argparse.SUPPRESS)  # for one that clients of the daemon must not find


def _run(options: argparse.Namespace) -> None:
    from trims.core.errors import TrimsError
    from trims.wire.address import default_runtime_dir
    from trims.wire.endpoint_file import ERROR_FILE, leave_text

    try:
        _serve(options)
    except (TrimsError, OSError) as error:
        if options.supervised:  # the daemon reports it to clients that ask
            folder = options.address_dir or options.runtime_dir or default_runtime_dir()
            leave_text(os.path.join(folder, ERROR_FILE), str(error))
        raise


def _serve(options: argparse.Namespace) -> None:
    from trims.core.errors import ConfigError
    from trims.process.packages import install_words
    from trims.process.system_calls import require

    require()
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
        import uvloop  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"the endpoint needs {error.name}: {install_words('trims[endpoint]')}") from error
    from trims_predictors.endpoint.main import serve

    serve(_settings(options))


def _settings(options: argparse.Namespace) -> EndpointSettings:
    from trims.core.units import parse_bytes
    from trims.tenants import read_tenants
    from trims.wire.address import default_runtime_dir
    from trims_predictors.children.launcher import check_hidden
    from trims_predictors.deployment.deployment import Settings
    from trims_predictors.deployment.variables import listed_variables
    from trims_predictors.endpoint.settings import EndpointSettings, read_token
    from trims_predictors.sandbox.sandbox import choose

    tenants = read_tenants(options.tenants)
    runtime_dir = options.runtime_dir or default_runtime_dir()
    predictor_bytes = _predictor_memory(options.predictor_memory)
    isolation = choose(options.isolation, [str(path) for path in _hidden(options)])
    if predictor_bytes is not None:
        isolation = replace(isolation, scratch_bytes=predictor_bytes)
    check_hidden(options.hide, isolation, runtime_dir)
    pool = Settings(
        runtime_dir=runtime_dir,
        predictors=_at_least(options.predictors, "--predictors", 1),
        of_tenants={name: each.predictors for name, each in tenants.by_name.items() if each.predictors is not None},
        queue=_at_least(options.queue, "--queue", 1),
        most_instances=None
        if options.most_instances is None
        else _at_least(options.most_instances, "--most-instances", 1),
        most_further_bytes=None if options.further_memory is None else parse_bytes(options.further_memory),
        keep_alive_s=_seconds(options.keep_alive_s, "--keep-alive-s"),
        template_keep_alive_s=_seconds(options.template_keep_alive_s, "--template-keep-alive-s"),
        most_template_bytes=_bound(options.template_memory),
        isolation=isolation,
        hot_spares=_at_least(options.hot_spares, "--hot-spares", 0),
        device_spares=_at_least(options.device_spares, "--device-spares", 0),
        end_abandoned=options.abandoned_runs == "end",
        most_predictor_bytes=predictor_bytes,
        learned=options.learned,
        load_deadline_s=_work_deadline(options.load_deadline_s, "--load-deadline-s"),
        queue_deadline_s=_deadline(options.queue_deadline_s, "--queue-deadline-s"),
        run_deadline_s=_work_deadline(options.run_deadline_s, "--run-deadline-s"),
    )
    return EndpointSettings(
        pool=pool,
        host=options.host,
        port=_port(options.port, "--port"),
        grpc_port=None if options.grpc_port == "none" else _port(options.grpc_port, "--grpc-port", " or none"),
        grpc_ping_s=_deadline(options.grpc_ping_s, "--grpc-ping-s"),
        token=None if options.token_file is None else read_token(options.token_file),
        tenants=tenants,
        token_file=options.token_file,
        tenants_file=options.tenants,
        certificate=options.certificate,
        private_key=options.private_key,
        most_body_bytes=_max_body(options.max_body),
        shared_memory=options.shared_memory == "system",
        environments=environments_in(options.environments),
        environments_dir=environments_dir_of(options),
        preload=tuple(each for each in options.preload.split(",") if each),
        model_variables=listed_variables(options.model_variables),
        supervised=options.supervised,
        address_dir=options.address_dir,
        log_level=options.log_level,
        log_format=options.log_format,
        access_log=options.access_log,
    )


def _at_least(value: int, flag: str, least: int) -> int:
    from trims.core.errors import ConfigError

    if value < least:
        raise ConfigError(f"{flag} is {value}; it must be {least} or more")
    return value


def _port(text: str, flag: str, otherwise: str = "") -> int:
    from trims.core.errors import ConfigError

    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise ConfigError(f"{flag} is {text!r}; it must be a port from 1 to 65535, 0 for any free one{otherwise}")
    return int(text)


def _bound(text: str) -> int | None:
    """Parse a bound of memory in bytes. Raises ConfigError if it is no size, or this machine cannot measure memory."""
    from trims_predictors.warm.memory_usage import require_footprints

    most_bytes = _memory(text, "--template-memory")
    if most_bytes is not None:
        require_footprints()
    return most_bytes


def _memory(text: str, flag: str) -> int | None:
    from trims.core.errors import ConfigError
    from trims.core.units import parse_bytes

    if text == "none":
        return None
    most_bytes = parse_bytes(text)
    if not most_bytes:
        raise ConfigError(f"{flag} is {text!r}; it must be a size such as 2GiB, or none for no bound")
    return most_bytes


def _predictor_memory(text: str) -> int | None:
    from trims.core.errors import ConfigError

    most_bytes = _memory(text, "--predictor-memory")
    if most_bytes is not None and most_bytes < _LEAST_PREDICTOR_BYTES:
        raise ConfigError(
            f"--predictor-memory is {text!r}, in which no predictor starts: a thread alone takes 8 MiB; "
            "give 16MiB or more"
        )
    return most_bytes


def _max_body(text: str) -> int:
    from trims.core.errors import ConfigError
    from trims.core.units import parse_bytes

    most_bytes = parse_bytes(text)
    if not most_bytes:
        raise ConfigError(f"--max-body is {text!r}, which refuses all requests; give a size such as 256MiB")
    return most_bytes


def _hidden(options: argparse.Namespace) -> list[Path]:
    """Return the paths hidden from predictors: secrets, folders that the command line names, and a daemon's folders."""
    from trims.daemon.config import build_config

    given = [path for path in (options.token_file, options.private_key, options.tenants) if path is not None]
    # Kubernetes switches a link to another folder within the volume: its next files are hidden, too.
    secrets = [path.parent if (path.parent / "..data").exists() else path for path in given]
    config = build_config({"runtime_dir": options.runtime_dir} if options.runtime_dir else {})
    return [*options.hide, config.state_dir, config.segment_dir, *secrets]


def _seconds(text: str, flag: str) -> float | None:
    return None if text == "lazy" else _number(text, flag, ", or lazy")


def _deadline(text: str, flag: str) -> float:
    return _number(text, flag, "")


def _work_deadline(text: str, flag: str) -> float:
    """Parse a deadline for work that always takes time. Raises ConfigError for 0 seconds, which ends it at once."""
    from trims.core.errors import ConfigError

    seconds = _deadline(text, flag)
    if not seconds:
        raise ConfigError(f"{flag} is {text!r}, which ends all work at once; it must be more than 0 seconds")
    return seconds


def _number(text: str, flag: str, otherwise: str) -> float:
    from trims.core.errors import ConfigError

    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise ConfigError(f"{flag} is {text!r}; it must be a number of seconds from 0 up{otherwise}")
    return seconds


def add_environments(command: argparse.ArgumentParser) -> None:
    """Add the options that say where predictors run."""
    text = "interpreters of frameworks with an environment of their own: mxnet=/path/to/python,..."
    command.add_argument("--environments", default=os.environ.get("TRIMS_ENVIRONMENTS", ""), help=text)
    text = "where trims env makes environments (default: $TRIMS_ENVIRONMENTS_DIR)"
    command.add_argument("--environments-dir", type=Path, help=text)


def environments_in(text: str) -> dict[str, Path]:
    """`mxnet=/path/to/python,...` as a mapping. Raises ConfigError for a file that is not there."""
    from trims.core.errors import ConfigError
    from trims.environments.interpreters import parse_interpreters

    try:
        return parse_interpreters(text)
    except ValueError as error:
        raise ConfigError(f"--environments has {text!r}: {error}") from error


def environments_dir_of(options: argparse.Namespace) -> Path:
    """Return the folder of made environments, as these options and the variables say."""
    from trims.environments.environment_store import default_folder

    folder: Path | None = options.environments_dir
    return default_folder() if folder is None else folder.absolute()
