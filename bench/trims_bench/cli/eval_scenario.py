"""The options of `trims eval --scenario`, and what it does: load against an endpoint, and a report."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from trims_predictors.cli.run_request import HttpEndpoint
    from trims_predictors.tensors import Tensor

    from trims.manifests.serving import TensorType
    from trims_bench.evaluation.records import Order
    from trims_bench.workloads.max_rate import Probe
    from trims_bench.workloads.order import Server
    from trims_bench.workloads.result import Workload
    from trims_bench.workloads.scenarios import Scenario, Target

_NAMES = ("single-stream", "batched", "poisson", "burst", "closed", "max-rate", "replay")
#: Options of the load, and those of the endpoint: without --scenario they have no meaning.
_LOAD = (
    "rate", "duration", "requests", "concurrency", "burst_size", "bound_ms", "percentile", "arrivals",
    "time_scale", "popularity", "seed", "deadline_s", "connections",
)  # fmt: skip
_ENDPOINT = ("endpoint", "token_file", "certificate", "send")
#: Options of the evaluation of starts, and their flags where these are others.
_STARTS = {
    "tiers": "--from", "ways": "--how", "repeat": "", "resume": "", "idle": "", "level": "",
}  # fmt: skip
_STATUS_INTERRUPTED = 130
#: Seconds between two lines of `--json-lines`.
_EVERY_S = 0.5


def add_options(evaluate: argparse.ArgumentParser) -> None:
    """Add the options of loads to `trims eval`."""
    text = "load instead of starts, on one or more models; an option that the scenario has no use for is refused"
    group = evaluate.add_argument_group("load", text)
    text = (
        "single-stream: one request after the other; batched: the same with --batch rows each; poisson: at random "
        "times; burst: several at the same moment; closed: --concurrency at any time; max-rate: the highest rate that "
        "is held; replay: of a file of arrivals"
    )
    group.add_argument("--scenario", choices=_NAMES, help=text)
    numbers: list[tuple[str, type, str]] = [
        ("rate", float, "requests per second; of max-rate the first that is tried (default: 64)"),
        ("duration", float, "seconds of the load or of each probe (default: 10; of a probe 5; of replay the file's)"),
        ("requests", int, "how many, if that comes first; of a probe the least number"),
        ("concurrency", int, "of the closed loop (default: 8)"),
        ("burst-size", int, "requests at the same moment (default: 10)"),
        ("bound-ms", float, "latency that max-rate allows at the percentile"),
        ("percentile", float, "which one (default: 99)"),
        ("time-scale", float, "seconds of the file in one second (default: 1)"),
        ("seed", int, "of all that is drawn (default: 1)"),
        ("connections", int, "at once, at most (default: 4096)"),
        ("deadline-s", float, "seconds in which an answer counts (default: 60)"),
    ]
    for name, kind, text in numbers:
        group.add_argument(f"--{name}", type=kind, metavar="N", help=text)
    group.add_argument("--arrivals", type=Path, metavar="FILE", help="in the Azure Functions format of 2019 or 2021")
    text = "of the models: uniform, zipf:S (the first named one is asked for most), pareto:A (default: uniform)"
    group.add_argument("--popularity", metavar="KIND", help=text)
    text = "an input of the requests, as for trims run; may be repeated (default: made from the model's inputs)"
    group.add_argument("--input", dest="send", action="append", metavar="INPUT", help=text)
    group.add_argument("--endpoint", help="URL of a running endpoint (default: one for the time of the evaluation)")
    group.add_argument("--token-file", type=Path, help="file with the token that the endpoint needs")
    group.add_argument("--certificate", help="file with the endpoint's certificate, for https")


def check_absent(options: argparse.Namespace) -> None:
    """Raise CallerError if options of loads are stated without --scenario."""
    from trims.core.errors import CallerError

    for name in (*_LOAD, *_ENDPOINT):
        if getattr(options, name) is not None:
            raise CallerError(f"{_flag(name)} is an option of loads; name one with --scenario")


def evaluate_scenario(options: argparse.Namespace) -> int:
    """Make the load that the options ask for, keep it in the database, and report it. Return the exit status."""
    from trims.cli.output import note, say, say_json
    from trims_bench.evaluation.database.connection import find_database
    from trims_bench.evaluation.database.evaluations import Evaluations
    from trims_bench.evaluation.records import WORKLOAD
    from trims_bench.workloads.load import DONE, INTERRUPTED
    from trims_bench.workloads.report import lines

    scenario, models = _chosen(options)
    with Evaluations(find_database(options.database, options.runtime_dir)) as kept:  # before minutes are spent
        order = _order(options, scenario, models)
        kept.begin(order, 0)  # it is known, though this process is killed
        result = _made(options, scenario, models)
        kept.add_document(order.id, WORKLOAD, 0, result.as_json())
        if result.ended == DONE:
            kept.end(order.id, {})
    if options.json_lines:
        pass
    elif options.json:
        say_json({"id": order.id, "workload": result.as_json()})
    else:
        say(f"evaluation {order.id}")
        say("\n".join(lines(result)))
    if result.ended == DONE:
        return 0 if result.answered else 1
    if result.ended == INTERRUPTED:
        return _STATUS_INTERRUPTED
    note(f"trims: {result.ended}; what is reported is what came until then")
    return 1


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | str) else str(value)


def _order(options: argparse.Namespace, scenario: Scenario, models: Sequence[str]) -> Order:
    from dataclasses import asdict

    from trims_bench.evaluation.records import Order, new_id
    from trims_bench.evaluation.stack import stack

    identity, began = options.id or new_id(), time.time()
    asked = {name: _plain(value) for name, value in asdict(scenario).items() if value is not None}
    return Order(
        identity, ", ".join(models), "", (), (), 0, scenario={"scenario": scenario.name, **asked}, began_unix_s=began,
        stack=stack(),
    )  # fmt: skip


def _chosen(options: argparse.Namespace) -> tuple[Scenario, list[str]]:
    from trims.core.errors import CallerError
    from trims_bench.workloads.scenarios import choose

    for name, flag in _STARTS.items():
        if getattr(options, name):
            raise CallerError(
                f"{flag or _flag(name)} is an option of evaluations of starts; leave it out, or --scenario"
            )
    if not options.model:
        raise CallerError("name at least one model")
    models = [options.model, *options.input]
    twice = next((each for each in models if models.count(each) > 1), None)
    if twice is not None:
        raise CallerError(f"{twice!r:.80} is named twice; with --scenario all words are models, and --input has inputs")
    if options.send and len(models) > 1:
        raise CallerError("--input is for one model; several get inputs that are made from what they state")
    if options.endpoint is None and (options.token_file or options.certificate):
        raise CallerError("--token-file and --certificate are for --endpoint URL")
    given = {**{name: getattr(options, name) for name in _LOAD}, "batch": _batch(options.batches)}
    return choose(options.scenario, given), models


def _batch(text: str | None) -> int | None:
    from trims.core.errors import CallerError

    try:
        return None if text is None else int(text)
    except ValueError as error:
        raise CallerError(f"--batch {text!r:.80}: a load has requests of one size") from error


def _made(options: argparse.Namespace, scenario: Scenario, models: Sequence[str]) -> Workload:
    from trims.core.errors import ConfigError
    from trims.process.packages import install_words
    from trims.wire.address import default_runtime_dir

    try:
        import httptools  # noqa: F401 - the generator's parser
    except ImportError as error:
        raise ConfigError(f"a load needs {error.name}: {install_words('trims[endpoint]')}") from error
    from trims_bench.endpoint import EndpointProcess
    from trims_bench.workloads.probing import find_max_rate
    from trims_bench.workloads.scenarios import MAX_RATE, run_scenario

    with ExitStack() as stack:
        url = options.endpoint
        if url is None:
            runtime_dir = options.runtime_dir or default_runtime_dir()
            stack.enter_context(_alone(runtime_dir))
            flags = ["--log-level", "warning", "--environments", options.environments]
            if options.environments_dir is not None:
                flags += ["--environments-dir", str(options.environments_dir)]
            url = stack.enter_context(EndpointProcess(runtime_dir, *flags)).url
        target = _target(options, scenario, url, models)
        if scenario.name == MAX_RATE:
            return find_max_rate(scenario, target, _say_probe if options.json_lines else _probed)
        return run_scenario(scenario, target, _Said() if options.json_lines else _progress)


@contextmanager
def _alone(runtime_dir: str) -> Iterator[None]:
    """Keep other evaluations of this daemon away for the length of a block. Raises BusyError, DaemonAwayError."""
    from trims.control import admin
    from trims_bench.evaluation.session import only_evaluation

    with admin(runtime_dir) as daemon:
        state_dir = Path(daemon.status().health.state_dir)
    with only_evaluation(state_dir):
        yield


def _target(options: argparse.Namespace, scenario: Scenario, url: str, models: Sequence[str]) -> Target:
    """Return the server to ask, with a request for each model; the endpoint is asked for their inputs."""
    import urllib.parse

    from trims_predictors.cli.run_request import Away, HttpEndpoint, request_body
    from trims_predictors.endpoint.json.requests import HEADER_LENGTH
    from trims_predictors.endpoint.settings import read_token

    from trims.core.errors import DaemonAwayError
    from trims_bench.workloads.order import http_request
    from trims_bench.workloads.scenarios import Target

    token = None if options.token_file is None else read_token(options.token_file)
    endpoint = HttpEndpoint(url, token, options.certificate, scenario.deadline_s)
    server, host, prefix = _server(url, options.certificate)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    requests = []
    for model in models:
        try:
            tensors = _inputs(endpoint, model, options.send, options.dtype, scenario.batch)
        except Away as error:
            raise DaemonAwayError(f"{error}; leave --endpoint out to have one started") from error
        body, length = request_body(tensors, scenario.deadline_s)
        path = f"{prefix}/v2/models/{urllib.parse.quote(model, safe='')}/infer"
        requests.append(http_request(path, host, body, {HEADER_LENGTH: str(length), **headers}))
    return Target(server, models, requests)


def _inputs(
    endpoint: HttpEndpoint, model: str, given: Sequence[str] | None, dtypes: Sequence[str], batch: int | None
) -> list[Tensor]:
    """Return the inputs of a model's requests, `batch` rows of each."""
    from trims_predictors.cli.run_inputs import RunInputs

    from trims_bench.evaluation.inputs import made_inputs

    types = endpoint.inputs_of(model)
    if batch is not None:
        types = _batched(types, model, batch)
    reader = RunInputs(model, dtypes)
    if not given:
        return made_inputs(types, model)
    tensors = reader.read(given, types)
    return tensors if batch is None else [_repeated(each, batch) for each in tensors]


def _batched(types: Sequence[TensorType], model: str, batch: int) -> list[TensorType]:
    """Return types whose first dimension is the batch. Raises NotSupportedError if one has another length."""
    from trims.core.errors import NotSupportedError
    from trims.manifests.serving import ANY, ANY_RANK, TensorType

    found = []
    for each in types:
        first = each.shape[0] if each.shape else 0
        if first not in (ANY, ANY_RANK, batch):
            raise NotSupportedError(
                f"the input {each.name!r} of {model} has the shape {list(each.shape)}, whose first dimension is not "
                f"free, so it takes no batch of {batch}; choose another model or scenario"
            )
        found.append(each if first == ANY_RANK else TensorType(each.name, each.dtype, (batch, *each.shape[1:])))
    return found


def _repeated(tensor: Tensor, batch: int) -> Tensor:
    """Return a tensor of so many rows: as it is if it has them, else its one row repeated. Raises CallerError."""
    import numpy as np
    from trims_predictors.tensors import from_array, to_array

    from trims.core.errors import CallerError

    array = to_array(tensor)
    if array.ndim and array.shape[0] == batch:
        return tensor
    if not array.ndim or array.shape[0] != 1:
        raise CallerError(f"the input {tensor.name!r} has the shape {list(array.shape)}; give 1 or {batch} rows")
    return from_array(tensor.name, np.repeat(array, batch, axis=0))


def _server(url: str, certificate: str | None) -> tuple[Server, str, str]:
    """Return the server of a URL, its name for the header Host, and the path before all others. Raises CallerError."""
    import socket
    import urllib.parse

    from trims.core.errors import CallerError
    from trims_bench.workloads.order import Server

    try:
        parts = urllib.parse.urlsplit(url)
        name, tls = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0][4]
    except (ValueError, OSError) as error:
        raise CallerError(f"the endpoint {url!r:.200} has no address: {error}; write http://HOST:PORT") from error
    return Server(str(found[0]), int(found[1]), tls, name, certificate), parts.netloc, parts.path.rstrip("/")


def _progress(done: int, scheduled: int | None) -> None:
    if sys.stderr.isatty():
        of = "" if scheduled is None else f" of {scheduled:,}"
        sys.stderr.write(f"\r\033[K{done:,}{of} requests are over" + ("\n" if done == scheduled else ""))
        sys.stderr.flush()


class _Said:
    """Prints how far a load is, as a line of JSON, at most twice a second."""

    def __init__(self) -> None:
        self._again_s = 0.0

    def __call__(self, done: int, scheduled: int | None) -> None:
        now = time.monotonic()
        if now >= self._again_s or done == scheduled:
            self._again_s = now + _EVERY_S
            _say_line({"done": done, "total": scheduled or 0})


def _say_probe(probe: Probe) -> None:
    _say_line({"done": probe.requests, "total": 0, "probe": {"rate": probe.rate, "held": probe.held}})


def _say_line(found: dict[str, object]) -> None:
    import json

    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def _probed(probe: Probe) -> None:
    from trims.cli.output import note

    note(f"{probe.rate:.1f}/s: {probe.why or 'held'}")  # a search may take minutes


def _flag(name: str) -> str:
    return "--input" if name == "send" else f"--{name.replace('_', '-')}"
