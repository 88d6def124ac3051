"""The `trims run` command: one request, and its answer for people or programs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.cli.completion import PLACES, completed
from trims_predictors.cli.endpoint import add_environments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from trims_predictors.cli.run_request import HttpEndpoint, MakeInputs, Ran
    from trims_predictors.tensors import Tensor

#: Elements that are printed in full; larger tensors by their ends.
_MOST_ELEMENTS = 64
_MOST_LETTERS = 500
#: Tasks whose answers come in parts.
_GENERATING = ("text-generation", "text2text-generation")
_STARTS = ("process", "connect", "open", "import", "load")
_STAGES = ("queue", "input", "preprocess", "predict", "postprocess", "output", "run")
_INPUT = (
    "a .json file or text with a request of the Open Inference Protocol; a .npy file, or a .npz file with named "
    "inputs; any other file, as bytes; numbers such as [1, 2]; text. With several inputs, name=INPUT for each"
)
_DTYPE = (
    "type of an input that is given as numbers or text, such as FP32 or x=INT64 (default: what the model takes; before "
    "the first run of a model that does not say it, INT64 for whole numbers and FP32 for others)"
)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "ask a model once, through the endpoint or by a process of its own"
    run = commands.add_parser("run", help=text, description=text)
    run.add_argument("model", help="a registered model, or an address (hf://org/name), which is added first")
    run.add_argument("input", nargs="*", help=f"{_INPUT}; none: a request for each line of standard input")
    text = "where to have the weights, such as gpu, or gpu,cpu for the first that can serve (default: the manifest's)"
    completed(run.add_argument("--place", help=text), PLACES)
    add_request_options(run)
    run.set_defaults(run=_run)


def add_request_options(run: argparse.ArgumentParser) -> None:
    """Add the options of a command that makes one request."""
    run.add_argument("--dtype", action="append", default=[], metavar="[NAME=]TYPE", help=_DTYPE)
    run.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    run.add_argument("--endpoint", help="URL of an endpoint, or none for a process of its own (default: the daemon's)")
    run.add_argument("--token-file", type=Path, help="file with the token that the endpoint needs")
    run.add_argument("--certificate", help="file with the endpoint's certificate, for https")
    run.add_argument("--deadline-s", type=float, default=600.0, help="seconds to wait for an answer (default: 600)")
    add_environments(run)


def _run(options: argparse.Namespace) -> int:
    options.model = registered(options.model, options.runtime_dir, quiet=options.json)
    if options.input:
        _run_once(options, options.input)
        return 0
    from trims_predictors.cli.run_lines import Conversation, answer_lines

    whole = options.json or options.place is not None  # neither comes part by part
    endpoint = None if whole or not _generates(options) else endpoint_of(options)
    if endpoint is not None:
        return answer_lines(Conversation(endpoint, options.model).answer)
    return answer_lines(lambda line: _run_once(options, [line]))


def _generates(options: argparse.Namespace) -> bool:
    """Return whether a model answers a text with text, part by part."""
    from trims.control import admin

    with admin(options.runtime_dir) as daemon:
        manifest = daemon.show(options.model).manifest
    return manifest.get("artifact", {}).get("options", {}).get("task") in _GENERATING


def _run_once(options: argparse.Namespace, given: list[str]) -> None:
    from trims.cli.output import say_json
    from trims.core.errors import CallerError, PredictorError
    from trims_predictors.cli.run_inputs import RunInputs

    inputs = RunInputs(options.model, options.dtype)
    try:
        found = ask(options, lambda types: inputs.read(given, types), options.place)
    except (CallerError, PredictorError) as error:
        if not inputs.guessed:
            raise
        raise type(error)(f"{error}; {inputs.format_guesses()}") from error
    if options.json:
        say_json(_as_json(found))
    else:
        _print(found)


def registered(model: str, runtime_dir: str | None, *, quiet: bool = False) -> str:
    """Return a model's name. A model that is named by its address is pulled first, and registered if it is new.

    Args:
        runtime_dir: Folder of the daemon's sockets; None for the default.
        quiet: Print no progress.

    Raises what `Admin.add` raises.
    """
    from trims.manifests.addresses import is_address, name_for

    if not is_address(model):
        return model
    from trims.cli.output import loading
    from trims.control import admin

    with admin(runtime_dir) as daemon, loading(model, quiet) as shown:
        known = [each.name for each in daemon.models() if each.manifest.get("artifact", {}).get("uri") == model]
        if known:
            return known[0]
        return daemon.add(model, name=name_for(model), on_progress=shown).name


def endpoint_of(options: argparse.Namespace) -> HttpEndpoint | None:
    """Return the endpoint that options name, else the daemon's; None if there is none, or `--endpoint none`."""
    from trims.core.errors import ConfigError
    from trims.wire.address import default_runtime_dir
    from trims.wire.endpoint_file import read_address
    from trims_predictors.cli.run_request import HttpEndpoint
    from trims_predictors.endpoint.settings import read_token

    if not 0 < options.deadline_s < math.inf:
        raise ConfigError(f"--deadline-s is {options.deadline_s:g}; it must be more than 0 seconds")
    found = read_address(options.runtime_dir or default_runtime_dir()) if options.endpoint is None else None
    url = options.endpoint or (found.url if found is not None else "none")
    if url == "none":
        return None
    token = None if options.token_file is None else read_token(options.token_file)
    return HttpEndpoint(url, token, options.certificate, options.deadline_s)


def ask(options: argparse.Namespace, make: MakeInputs, place: str | None = None) -> Ran:
    """Make the request of a command with these options. Raises what the endpoint, or `WorkerPool.infer`, raises.

    Args:
        options: Options that `add_request_options` added.
        make: Makes its tensors.
        place: Where to have the weights, or several such places with commas between; None for the manifest's.
    """
    from trims.cli.output import note
    from trims.core.errors import DaemonAwayError
    from trims.environments.environment_store import EnvironmentStore
    from trims.formats.conversion.interpreter_selection import InterpreterSelection
    from trims.wire.address import default_runtime_dir
    from trims_predictors.cli.endpoint import environments_dir_of, environments_in
    from trims_predictors.cli.run_request import Away, run_alone

    runtime_dir = options.runtime_dir or default_runtime_dir()
    endpoint = endpoint_of(options)
    if endpoint is not None:
        try:
            return endpoint.run(options.model, make, options.deadline_s, place)
        except Away as error:
            if options.endpoint is not None:
                raise DaemonAwayError(f"{error}; leave --endpoint out to run the model without one") from error
            note(f"{error}")
    if options.endpoint is None:
        note(f"there is no endpoint: {options.model} runs in a process that ends with this command")
    picker = InterpreterSelection(environments_in(options.environments), EnvironmentStore(environments_dir_of(options)))
    return run_alone(runtime_dir, picker, options.model, make, deadline_s=options.deadline_s, place=place)


def _as_json(found: Ran) -> dict[str, Any]:
    from trims.core.errors import CallerError
    from trims_predictors.endpoint.json.requests import to_json

    try:
        outputs = [
            {"name": each.name, "datatype": each.dtype, "shape": list(each.shape), "data": to_json(each)}
            for each in found.outputs
        ]
    except CallerError as error:
        why = str(error).partition(";")[0]
        raise CallerError(f"{why}; leave --json out to see it") from error
    return {
        "model_name": found.model, "model_version": found.version, "parameters": dict(found.parameters),
        "outputs": outputs,
    }  # fmt: skip


def _print(found: Ran) -> None:
    from trims.cli.output import say

    for tensor in found.outputs:
        say(f"{tensor.name}: {tensor.dtype} {list(tensor.shape)}")
        say("\n".join(f"  {line}" for line in _values(tensor).splitlines()))
    say(format_start(found.parameters))
    say(format_stages(found.parameters))


def _values(tensor: Tensor) -> str:
    import numpy as np

    from trims_predictors.tensors import to_array

    array = to_array(tensor)
    if tensor.dtype == "BYTES":
        shown = [_shown(each) for each in array.ravel()[:_MOST_ELEMENTS]]
        return "\n".join([*shown, *(["..."] if array.size > len(shown) else [])])
    text: str = np.array2string(array, threshold=_MOST_ELEMENTS, max_line_width=100)
    if array.size > _MOST_ELEMENTS and tensor.dtype != "BOOL":
        plain = array.astype(np.float64)
        text += f"\nfrom {plain.min():g} to {plain.max():g}, mean {plain.mean():g}"
    return text


def _shown(element: bytes) -> str:
    try:
        text = element.decode()
    except UnicodeDecodeError:
        return f"{len(element)} bytes that are no text"
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}... ({len(text)} characters)"


def format_start(parameters: Mapping[str, Any]) -> str:
    """Return whether the answer was cold, in a sentence."""
    where = f"weights at {parameters.get('place')}"
    if not parameters.get("cold"):
        return f"warm: a predictor was running; {where}"
    resident = "already there" if parameters.get("resident") else "loaded for it"
    return f"cold: a predictor was started ({parameters.get('predictor')}); {where}, {resident}"


def format_stages(parameters: Mapping[str, Any]) -> str:
    """Return in words how long each stage took."""
    from trims.core.units import format_seconds

    def listed(names: tuple[str, ...]) -> list[str]:
        found = [(name, parameters.get(f"{name}_s")) for name in names]
        return [f"{name} {format_seconds(value)}" for name, value in found if value is not None]

    queue, *rest = listed(_STAGES) or [""]
    starts = listed(_STARTS)
    return ", ".join([f"{queue} ({', '.join(starts)})" if starts else queue, *rest])
