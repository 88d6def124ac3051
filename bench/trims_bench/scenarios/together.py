"""Requests that are answered at once by several predictors of one machine."""

from __future__ import annotations

import os
import statistics
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from trims_bench.endpoint import EndpointClient, EndpointProcess
from trims_bench.figures import Bar, Comparison, Figure, Samples, share
from trims_bench.scenarios.predictor import RESNET50, make_and_register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims_bench.endpoint import Inputs
    from trims_bench.scenarios.base import Setup

TITLE = "answers to clients that ask at once, each by a predictor of its own, against one client alone"
_CLIENTS = (1, 2, 4)
_SECONDS, _HURRY_S = 5.0, 0.5
_NOTE = (
    "ResNet-50 in PyTorch, one image; each client asks again at once, for 5 s a turn. The manifest states no number of "
    "threads, so runs that go on at once divide the processors. Theirs: the same model, whose manifest states as many "
    "threads for each predictor as there are processors. Bars: so many requests at once take no longer than one after "
    "the other."
)


def run(setup: Setup) -> Figure:
    """Turns of one, two and four clients, each of both models."""
    most = max(_CLIENTS)
    stated = {"threads": len(os.sched_getaffinity(0))}
    inputs = RESNET50.inputs(setup.size(224, 32))
    with setup.scratch() as folder, setup.daemon() as daemon, EndpointProcess(daemon.runtime_dir) as endpoint:
        names = []
        for title, threads in (("divided", {}), ("stated", stated)):
            kind = replace(RESNET50, title=title)
            names.append(make_and_register(setup, folder, daemon, kind, {"instances": most, "hot": 0, **threads}))
            daemon.load(names[-1], place="cpu")
            _ask(endpoint, names[-1], inputs, most, _HURRY_S)
        while endpoint.state()["learning"]:
            time.sleep(0.1)
        taken: dict[tuple[str, int], list[int]] = {}
        for _ in range(setup.repeats(5)):
            for clients in _CLIENTS:
                for name in names:
                    answers = _ask(endpoint, name, inputs, clients, _HURRY_S if setup.quick else _SECONDS)
                    taken.setdefault((name, clients), []).append(round(statistics.median(answers)))
    return Figure("together", TITLE, [*_compared(names[0], names[1], taken)], [_NOTE])


def _compared(divided: str, stated: str, taken: dict[tuple[str, int], list[int]]) -> Iterator[Comparison]:
    alone = Samples("one client", taken[divided, 1], "ns")
    for clients in _CLIENTS[1:]:
        ours = Samples(f"{clients} clients", taken[divided, clients], "ns")
        yield share(f"{clients} clients at once, times one client", ours, alone, Bar("<=", float(clients)))
    for clients in _CLIENTS:
        ours = Samples("divided", taken[divided, clients], "ns")
        theirs = Samples("stated for each", taken[stated, clients], "ns")
        yield share(f"{clients} at once, times threads stated for each", ours, theirs, None)


def _ask(endpoint: EndpointProcess, name: str, inputs: Inputs, clients: int, seconds: float) -> list[int]:
    """Nanoseconds of each answer."""
    taken: list[int] = []
    together = threading.Barrier(clients)

    def ask() -> None:
        client = EndpointClient(endpoint.port)
        together.wait()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.perf_counter_ns()
            client.infer(name, inputs)
            taken.append(time.perf_counter_ns() - began)
        client.close()

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken
