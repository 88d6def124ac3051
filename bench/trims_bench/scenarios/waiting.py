"""Requests that wait for others of their model: short ones behind long ones, and several clients of two predictors."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

from trims_bench.endpoint import EndpointProcess
from trims_bench.loads import load_of, ns_of, requests_to, target
from trims_bench.measuring import Bar, Comparison, Figure, Samples, share
from trims_bench.scenarios import Part
from trims_bench.scenarios.folders import Asker, add, gpt2, minilm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup
    from trims_bench.workloads.result import Workload

_BEHIND = "20 short requests for text while three long ones of the same model run, over the same without them"
_SHARED = "MiniLM: clients of two predictors, over LitServe with two workers; one client, over one worker"
_SHORT, _LONG, _LONG_ONES, _SHORT_ONES = 5, 480, 3, 20
_BEHIND_NOTE = (
    "GPT-2 (124 million parameters, seeded), 5 tokens without sampling for a short request, 480 for a long one; short "
    "ones follow each other over one connection, from 2 s after the long ones on. The manifest states no `instances`. "
    "p99 of 20 is the largest."
)
_SHARED_NOTE = (
    "`sentence-transformers/all-MiniLM-L6-v2`, one sentence in JSON, a closed loop, turns of 8 s; only the server that "
    "is asked runs. LitServe with two workers of one thread each, its faster queue and one API server; ours with two "
    "predictors (`instances: 2`) that divide the processors; for one client LitServe has one worker of two threads."
)
_TEXT = "This is a sentence of a length that people write, with a clause behind it."


# -- short requests behind long ones -------------------------------------------------------------------------------


def behind_long(setup: Setup) -> Figure:
    """Ask for short texts alone, then while long ones are made."""
    alone, behind = [], []
    long = setup.size(_LONG, 20)
    with setup.daemon() as daemon, EndpointProcess(daemon.runtime_dir, "--hot-spares", "0") as endpoint:
        name = add(daemon, gpt2(setup), "gpt2")
        daemon.load(name, place="cpu")
        _texts(endpoint.port, name, _SHORT, 3)
        endpoint.await_calm()
        for _ in range(setup.repeats(3)):
            alone += _texts(endpoint.port, name, _SHORT, _SHORT_ONES)
            with ThreadPoolExecutor(_LONG_ONES) as clients:
                running = [clients.submit(_texts, endpoint.port, name, long, 1) for _ in range(_LONG_ONES)]
                time.sleep(setup.seconds(2.0, 0.2))
                behind += _texts(endpoint.port, name, _SHORT, _SHORT_ONES)
                ended = [each.result() for each in running if each.done()]
            if ended and not setup.quick:
                raise RuntimeError(f"a long request took {ended} ns, and ended before the short ones")
    sides = [Samples(what, taken) for what, taken in (("behind long ones", behind), ("alone", alone))]
    compared = []
    for what, at in (("p99", 0.99), ("p50", 0.5)):
        ours, theirs = (Samples(f"{side.of}, {what}", [side.percentile(at)]) for side in sides)
        compared.append(share(f"short requests, {what}", ours, theirs, Bar("<=", 3.0) if what == "p99" else None))
    return Figure("behind_long", _BEHIND, compared, [_BEHIND_NOTE])


def _texts(port: int, name: str, tokens: int, count: int) -> list[int]:
    """Nanoseconds of each of so many requests for so many tokens, one after the other."""
    body = json.dumps({"text_input": _TEXT, "max_tokens": tokens, "min_tokens": tokens}).encode()
    found = []
    with closing(Asker(port)) as asker:
        for _ in range(count):
            began = time.perf_counter_ns()
            asker.ask(f"/v2/models/{name}/generate", body)
            found.append(time.perf_counter_ns() - began)
    return found


# -- two predictors beside two workers -----------------------------------------------------------------------------

_CLIENTS = 4


def shared(setup: Setup) -> Figure:
    """Take turns with LitServe: four clients of two predictors, then one client of one."""
    figure = Figure("shared", _SHARED, [], [_SHARED_NOTE])
    with setup.scratch() as folder, setup.daemon() as daemon:
        given = add(daemon, minilm(setup), "minilm")
        daemon.load(given, place="cpu")
        for clients, workers, least in ((_CLIENTS, 2, 1.2), (1, 1, 1.3)):
            ways = _ways(setup, daemon, given, folder, workers)
            turns: dict[str, list[Workload]] = {name: [] for name in ways}
            for _ in range(setup.repeats(5)):
                for name, way in ways.items():
                    turns[name].append(way(clients))
            figure.comparisons += _compared(clients, turns, least)
    return figure


def _ways(
    setup: Setup, daemon: DaemonProcess, name: str, folder: Path, workers: int
) -> dict[str, Callable[[int], Workload]]:
    """Return what makes a load of so many clients, for each server that can be had."""
    from trims_bench.others.serving import LITSERVE_FOLDER, install, serving
    from trims_bench.scenarios.folders import set_predictor

    set_predictor(daemon, name, instances=workers)
    request = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [_TEXT]}]}
    headers = {"Content-Type": "application/json"}

    def ours(clients: int) -> Workload:
        with EndpointProcess(daemon.runtime_dir, "--hot-spares", "0", "--preload", "transformers") as endpoint:
            asked = requests_to(endpoint, {name: (json.dumps(request).encode(), headers)})
            load_of("closed", asked, concurrency=clients, duration=setup.seconds(3.0, 0.2))
            endpoint.await_calm()
            load_of("closed", asked, concurrency=clients, duration=setup.seconds(1.0, 0.2))
            return load_of("closed", asked, concurrency=clients, duration=setup.seconds(8.0, 0.5))

    if setup.quick:
        return {"trims": ours}
    python = install(LITSERVE_FOLDER, setup.work / "others" / "litserve-folder")
    model = minilm(setup)

    def theirs(clients: int) -> Workload:
        with serving(LITSERVE_FOLDER, python, folder / "litserve", model, workers=workers) as url:
            asked = target(url, {name: (json.dumps({"text": _TEXT}).encode(), headers)})
            load_of("closed", asked, concurrency=clients, duration=2.0)
            return load_of("closed", asked, concurrency=clients, duration=8.0)

    return {"trims": ours, "LitServe": theirs}


def _compared(clients: int, turns: dict[str, list[Workload]], least: float) -> Iterator[Comparison]:
    who = "one client" if clients == 1 else f"{clients} clients"
    rates = {
        name: Samples(name, [round(each.rate_answered) for each in loads], "requests") for name, loads in turns.items()
    }
    if len(turns) == 1:
        yield Comparison(f"{who}, answers per second", rates["trims"].median, "requests", None, (rates["trims"],))
        return
    yield share(f"{who}, answers per second", rates["trims"], rates["LitServe"], Bar(">=", least))
    for name, bar in (("p99", Bar("<=", 1.0)), ("p50", None)):
        ours, theirs = (Samples(server, [ns_of(each, name) for each in loads]) for server, loads in turns.items())
        yield share(f"{who}, {name}", ours, theirs, bar if clients > 1 else None)


PARTS = {
    "behind_long": Part(_BEHIND, behind_long),
    "shared": Part(_SHARED, shared),
}
