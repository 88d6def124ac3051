"""Functions: an event over HTTP for a function that no process runs, over the same one on a platform, freshly started.

The platform's side is a process of Python with `trims.faas.wsgi` and a server of the standard library, from its start
to its answer; it has the same weights, which are resident.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Protocol

from trims_bench.child import environment
from trims_bench.endpoint import EndpointError, EndpointProcess
from trims_bench.measuring import Bar, Figure, Samples, faster, measure
from trims_bench.models import TORCH, inputs, manifest
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trims_bench.measuring import Comparison
    from trims_bench.scenarios.base import Setup

_TITLE = "an event for a function that no process runs, over the same function by trims.faas.wsgi in a fresh process"
_NOTE = (
    "From the request to the answer, over HTTP by the standard library; the event is the numbers of 16 tokens as JSON, "
    "and the handler, whose file imports torch, runs the model and answers with four numbers. The weights are in "
    "shared memory for both sides. Served: no process of the function runs; the template is warm, and a spare of it "
    "opens the model and imports the function once the request has come. By wsgi: from the start of Python to the "
    "answer. Both take turns; what a turn leaves behind has ended before the next one."
)
_FILE = '''"""A function: the mean of a model's last layer."""

import torch


def handler(model, event):
    """Return four numbers of the mean over the tokens."""
    ids = torch.tensor(event["input_ids"])
    with torch.inference_mode():
        found = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    return found[0].mean(1)[0, :4].tolist()
'''
_PROGRAM = '''"""The function as a platform starts it."""

import sys
from wsgiref.simple_server import make_server

import trims
from embed import handler

application = trims.faas.wsgi(handler, sys.argv[1], as_="torch", runtime_dir=sys.argv[2])
with make_server("127.0.0.1", 0, application) as server:
    print(server.server_port, flush=True)
    server.handle_request()
'''
#: Models by title: architecture, and the bar of a function of it.
_MODELS = {"MiniLM": ("minilm", Bar(">=", 30.0)), "BERT-base": ("bert-base", Bar(">=", 30.0))}
_SERVED, _FRESH = "served", "by wsgi, fresh"
#: Answers of the ways may differ by so much: their frameworks may have other numbers of threads.
_CLOSE = 1e-4
_PATIENCE_S = 120.0


def cold(setup: Setup) -> Figure:
    """Measure each model's function in all ways."""
    figure = Figure("functions", _TITLE, [], [_NOTE])
    models = _MODELS if not setup.quick else {"MiniLM": _MODELS["MiniLM"]}
    flags = ["--preload", TORCH, "--hot-spares", "0"]
    with (
        setup.scratch() as folder,
        setup.daemon() as daemon,
        EndpointProcess(daemon.runtime_dir, *flags) as endpoint,
    ):
        (folder / "embed.py").write_text(_FILE)
        (folder / "app.py").write_text(_PROGRAM)
        for title, (architecture, bar) in models.items():
            name = daemon.register(manifest(f"of-{architecture}", architecture, TORCH, small=setup.quick))
            daemon.load(name, place="cpu")
            function = daemon.register(_function(folder, name))
            event = json.dumps({"input_ids": inputs(architecture, TORCH)["input_ids"].tolist()}).encode()
            ways: dict[str, _Way] = {
                _SERVED: _Asked(endpoint, function, event),
                _FRESH: _Fresh(folder, name, daemon.runtime_dir, event),
            }
            figure.comparisons.append(_compared(title, ways, setup.repeats(15), bar))
            daemon.evict(name)
    return figure


def _function(folder: Path, model: str) -> dict[str, Any]:
    """Return the manifest of the function, as `trims add embed.py --model ... --as torch` makes it."""
    handler = {"handler": f"{folder / 'embed.py'}:handler", "options": {"as": TORCH}, "threads": 2}
    return {
        "name": f"function-{model}",
        "artifact": {"model": model},
        "framework": {"name": TORCH},
        "predictor": handler,
    }


def _compared(title: str, ways: Mapping[str, _Way], count: int, bar: Bar) -> Comparison:
    """Take samples in turns. The first two rounds do not count: the template learns what the function imports."""
    answers: list[list[float]] = []

    def keep(way: str, answer: list[float]) -> None:
        answers.append(answer)
        if max(abs(a - b) for a, b in zip(answers[0], answer, strict=True)) > _CLOSE:
            raise EndpointError(f"{title} {way}: {answer} is not {answers[0]}")
        ways[way].settle()

    found = measure(ways, count, warm_up=2, keep=keep)
    return faster(f"{title}, times sooner", Samples(_SERVED, found[_SERVED]), Samples(_FRESH, found[_FRESH]), bar)


class _Way(Protocol):
    """One way of having an event answered."""

    def __call__(self) -> list[float]:
        """Return the answer to the event."""

    def settle(self) -> None:
        """Return once nothing of the last answer runs any more. Not timed."""


class _Asked:
    """Function at an endpoint."""

    def __init__(self, endpoint: EndpointProcess, function: str, event: bytes) -> None:
        self._endpoint, self._function, self._event = endpoint, function, event

    def __call__(self) -> list[float]:
        path = f"/functions/{self._function}"
        return _answer(self._endpoint.port, path, self._event, {"Trims-Keep-Alive": "0"})

    def settle(self) -> None:
        self._endpoint.await_spare(TORCH, self._function)


class _Fresh:
    """The function in a process of its own, started for one event."""

    def __init__(self, folder: Path, model: str, runtime_dir: Path, event: bytes) -> None:
        self._command = [sys.executable, str(folder / "app.py"), model, str(runtime_dir)]
        self._event = event

    def __call__(self) -> list[float]:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
        )
        assert self._process.stdout is not None, "a pipe"
        port = self._process.stdout.readline()
        if not port:
            raise EndpointError("the function's process ended before it listened")
        return _answer(int(port), "/", self._event, {})

    def settle(self) -> None:
        assert self._process.stdout is not None, "a pipe"
        self._process.wait(_PATIENCE_S)
        self._process.stdout.close()


def _answer(port: int, path: str, event: bytes, headers: Mapping[str, str]) -> list[float]:
    """Return the answer to an event. Raises EndpointError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
    try:
        connection.request("POST", path, event, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise EndpointError(f"{path}: {answer.status} {content[:2000].decode(errors='replace')}")
    found: list[float] = json.loads(content)
    return found


PARTS = {"functions": Part(_TITLE, cold)}
