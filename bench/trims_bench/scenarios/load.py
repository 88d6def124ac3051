"""Loads of `trims_bench.workloads`: beside other servers, on a stalled one, at once, and for many models."""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from trims_bench.child import call
from trims_bench.endpoint import EndpointProcess, as_inputs, in_binary
from trims_bench.loads import load_of, ns_of, requests_to, target
from trims_bench.measuring import Bar, Comparison, Figure, Samples, share
from trims_bench.models import TORCH, inputs, manifest
from trims_bench.scenarios import Part
from trims_bench.scenarios.room import zoo, zoo_daemon
from trims_bench.zoo import Load, answer_alone, chosen, clients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.others.serving import Other
    from trims_bench.scenarios.base import Setup
    from trims_bench.workloads.result import Workload
    from trims_bench.workloads.scenarios import Target
    from trims_bench.zoo import Model

_THROUGHPUT = "requests of a small model per second over 16 connections, against the better of LitServe and MLServer"
_LATE = "requests that the load generator sends late while the endpoint stands still for 2 s"
_TOGETHER = "answers to clients that ask at once, each by a predictor of its own, against one client alone"
_MANY = "30 models of 87 MiB behind the endpoint, memory for 12, Zipf 1.0, 8 clients: requests over a load for each"
_NAME, _WIDTH = "dense", 64


def _answered(what: str, loads: Sequence[Workload]) -> Comparison:
    counts = Samples("requests", [each.requests for each in loads], "requests")
    part = sum(each.answered for each in loads) / sum(counts.values)
    return Comparison(what, part, "x", Bar(">=", 1.0), (counts,))


def _in_json(*, speaks_v2: bool = True) -> tuple[bytes, dict[str, str]]:
    numbers = [0.5] * _WIDTH
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, _WIDTH], "data": numbers}
    body = {"inputs": [tensor]} if speaks_v2 else {"x": [numbers]}
    return json.dumps(body).encode(), {"Content-Type": "application/json"}


@contextmanager
def _dense(setup: Setup) -> Iterator[tuple[Path, Path, DaemonProcess]]:
    """A daemon with the small model in memory; yields a folder and the weights, too."""
    from trims_bench.small import manifest as small_manifest
    from trims_bench.small import write_weights

    with setup.scratch() as folder, setup.daemon() as daemon:
        weights = write_weights(folder / "small.npz")
        daemon.load(daemon.register(small_manifest(_NAME, weights, "dense", [-1, _WIDTH], instances=1)))
        yield folder, weights, daemon


# -- beside other servers ------------------------------------------------------------------------------------------

_CONNECTIONS = 16
_THROUGHPUT_NOTE = (
    "Two dense layers, 64 numbers in and 10 out, in JSON; each server has one worker process with one thread and one "
    "process for HTTP, and puts no requests together. The same closed loop of 16 for all, the Open Inference Protocol "
    "for ours and MLServer, its own `/predict` for LitServe; one answer of each is compared before. The servers take "
    "turns of 5 s, and only the one that is asked runs."
)


def throughput(setup: Setup) -> Figure:
    """Take turns of all servers that are to be had."""
    figure = Figure("throughput", _THROUGHPUT, [], [_THROUGHPUT_NOTE])
    found: dict[str, list[Workload]] = {}
    with _dense(setup) as (folder, weights, daemon):
        ways: dict[str, Callable[[], Workload]] = {"trims": partial(_ours, setup, daemon, _expected(weights))}
        for other, python in _others(setup, figure.notes):
            ways[other.name] = partial(_other, setup, other, python, folder, weights)
        for _ in range(setup.repeats(5)):
            for name in list(ways):
                _turn(name, ways, found, figure.notes)
    ours, *others = (
        Samples(name, [round(each.rate_answered) for each in turns], "requests") for name, turns in found.items()
    )
    if others:
        best = max(others, key=lambda each: each.median)
        title = f"requests per second, times the better other ({best.of})"
        figure.comparisons.append(share(title, ours, best, Bar(">=", 1.0)))
    else:
        figure.comparisons.append(Comparison("requests per second", ours.median, "requests", None, (ours,)))
    figure.comparisons += [share(f"requests per second, times {other.of}", ours, other, None) for other in others]
    figure.comparisons.append(_answered("answered, of all", found["trims"]))
    return figure


def _turn(
    name: str, ways: dict[str, Callable[[], Workload]], found: dict[str, list[Workload]], notes: list[str]
) -> None:
    """A server that does not start, or answers wrongly, is left out from then on, and named."""
    from trims_bench.others.serving import OtherMissingError

    try:
        found.setdefault(name, []).append(ways[name]())
    except OtherMissingError as error:
        del ways[name]
        del found[name]
        notes.append(f"{name} was not measured: {error}.")


def _others(setup: Setup, notes: list[str]) -> Iterator[tuple[Other, Path]]:
    """Servers and the Python that has each; they are not installed for a quick run."""
    from trims_bench.others.serving import LITSERVE, MLSERVER, OtherMissingError, install

    for other in (LITSERVE, MLSERVER):
        if setup.quick:
            notes.append(f"{other.name} was not measured: a quick run installs nothing.")
            continue
        try:
            yield other, install(other, setup.work / "others" / other.name)
            notes.append(f"{' and '.join(other.requirements)} in an environment of its own.")
        except OtherMissingError as error:
            notes.append(f"{other.name} was not measured: {error}.")


def _ours(setup: Setup, daemon: DaemonProcess, expected: list[float]) -> Workload:
    with EndpointProcess(daemon.runtime_dir, "--hot-spares", "0") as endpoint:
        _, content = endpoint.infer(_NAME, {"x": ("FP32", (1, _WIDTH), struct.pack("<f", 0.5) * _WIDTH)})
        _compare("trims", list(struct.unpack(f"<{len(content) // 4}f", content)), expected)
        return _asked(setup, requests_to(endpoint, {_NAME: _in_json()}))


def _other(setup: Setup, other: Other, python: Path, folder: Path, weights: Path) -> Workload:
    from trims_bench.others.serving import serving

    body, headers = _in_json(speaks_v2=other.speaks_v2)
    with serving(other, python, folder / other.name, weights) as url:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:  # noqa: S310 - our own
            told = json.loads(answer.read())
        _compare(other.name, told["outputs"][0]["data"] if other.speaks_v2 else told["y"][0], _expected(weights))
        return _asked(setup, target(url, {_NAME: (body, headers)}))


def _asked(setup: Setup, target: Target) -> Workload:
    load_of("closed", target, concurrency=_CONNECTIONS, duration=setup.seconds(1.0, 0.2))  # code paths get warm
    return load_of("closed", target, concurrency=_CONNECTIONS, duration=setup.seconds(5.0, 0.5))


def _compare(name: str, found: Sequence[float], expected: Sequence[float]) -> None:
    from trims_bench.others.serving import OtherMissingError

    close = len(found) == len(expected) and all(
        math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-3) for one, other in zip(found, expected, strict=True)
    )
    if not close:
        raise OtherMissingError(f"{name} answers {found}, not {expected}")


def _expected(weights: Path) -> list[float]:
    import numpy as np

    from trims_bench.small import dense

    with np.load(weights) as file:
        arrays = {name: file[name] for name in file.files}
    found: list[float] = dense(arrays, {"x": np.full((1, _WIDTH), 0.5, dtype=np.float32)})["y"][0].tolist()
    return found


# -- while the endpoint stands still -------------------------------------------------------------------------------

_RATE = 500.0
#: Further rates, without a stall.
_RATES = (1000.0, 2000.0)
_LATE_NOTE = (
    "Poisson arrivals at {rate:g} a second of a model of two dense layers in JSON; the endpoint's process is stopped "
    "(SIGSTOP) in the middle. Late: sent more than 1 ms after the intended time. The generator's scheduling was "
    "{scheduling}. The closed loop of 8 beside it shows what it hides: its p99 has no stall in it."
)


def late(setup: Setup) -> Figure:
    """Make loads in turns: open with a stall, and closed with one."""
    with (
        _dense(setup) as (_, _, daemon),
        EndpointProcess(daemon.runtime_dir, "--hot-spares", "0", "--queue", "10000") as endpoint,
    ):
        target = requests_to(endpoint, {_NAME: _in_json()})
        turns = range(setup.repeats(5))
        opened = [_stalled(setup, endpoint.pid, partial(load_of, "poisson", target, rate=_RATE)) for _ in turns]
        closed = [_stalled(setup, endpoint.pid, partial(load_of, "closed", target)) for _ in turns]
        quicker = [] if setup.quick else [load_of("poisson", target, rate=rate, duration=6.0) for rate in _RATES]
    counts = Samples("requests", [each.requests for each in opened], "requests")
    worst = max(each.late_share for each in opened) * 100
    p99 = [
        Samples(what, [ns_of(each, "p99") for each in loads]) for what, loads in (("open", opened), ("closed", closed))
    ]
    compared = [
        Comparison("sent more than 1 ms late while it stands still, worst turn", worst, "%", Bar("<=", 1.0), (counts,)),
        Comparison("p99 of the latency, open loop beside closed", p99[0].median / 1e6, "ms", None, p99),
        _answered("answered, of all", opened),
    ]
    notes = [_LATE_NOTE.format(rate=_RATE, scheduling=opened[0].scheduling)]
    notes += [f"At {each.rate_asked:.0f}/s without a stall: {each.late_share:.2%} late." for each in quicker]
    return Figure("late", _LATE, compared, notes)


def _stalled(setup: Setup, pid: int, load: Callable[..., Workload]) -> Workload:
    seconds, until_s, stall_s = (1.0, 0.2, 0.4) if setup.quick else (6.0, 1.0, 2.0)
    timers = [
        threading.Timer(until_s, os.kill, (pid, signal.SIGSTOP)),
        threading.Timer(until_s + stall_s, os.kill, (pid, signal.SIGCONT)),
    ]
    for timer in timers:
        timer.start()
    try:
        return load(duration=seconds)
    finally:
        for timer in timers:
            timer.join()


# -- several at once -----------------------------------------------------------------------------------------------

_CLIENTS = (1, 2, 4)
_TOGETHER_NOTE = (
    "ResNet-50 in PyTorch, one image, a closed loop of as many as there are clients, 5 s a turn. The manifest states "
    "no number of threads, so runs that go on at once divide the processors. Theirs: the same model, whose manifest "
    "states as many threads for each predictor as there are processors. Bars: so many requests at once take no longer "
    "than one after the other."
)


def together(setup: Setup) -> Figure:
    """Take turns of one, two and four clients, each of both models."""
    clients_at_once = _CLIENTS[: setup.size(3, 2)]
    most = max(clients_at_once)
    asked = in_binary(as_inputs(inputs("resnet50", TORCH, setup.size(224, 32))))
    taken: dict[tuple[str, int], list[int]] = {}
    with setup.daemon() as daemon, EndpointProcess(daemon.runtime_dir) as endpoint:
        for name, threads in (("divided", {}), ("stated", {"threads": len(os.sched_getaffinity(0))})):
            given = manifest(name, "resnet50", TORCH, small=setup.quick)
            daemon.register({**given, "predictor": {"instances": most, "hot": 0, **threads}})
            daemon.load(name, place="cpu")
            load_of("closed", requests_to(endpoint, {name: asked}), concurrency=most, duration=0.5)
        endpoint.await_calm()
        for _ in range(setup.repeats(5)):
            for count in clients_at_once:
                for name in ("divided", "stated"):
                    seconds = setup.seconds(5.0, 0.5)
                    load = load_of("closed", requests_to(endpoint, {name: asked}), concurrency=count, duration=seconds)
                    taken.setdefault((name, count), []).append(ns_of(load, "p50"))
    return Figure("together", _TOGETHER, [*_at_once(taken, clients_at_once)], [_TOGETHER_NOTE])


def _at_once(taken: Mapping[tuple[str, int], list[int]], clients_at_once: Sequence[int]) -> Iterator[Comparison]:
    alone = Samples("one client", taken["divided", 1])
    for count in clients_at_once[1:]:
        ours = Samples(f"{count} clients", taken["divided", count])
        yield share(f"{count} clients at once, times one client", ours, alone, Bar("<=", float(count)))
    for count in clients_at_once:
        ours, theirs = (Samples(name, taken[name, count]) for name in ("divided", "stated"))
        yield share(f"{count} at once, times threads stated for each", ours, theirs, None)


# -- many models ---------------------------------------------------------------------------------------------------

_ROOM, _ZIPF = 0.4, 1.0
_MANY_NOTE = (
    "A closed loop of eight, 16 tokens each time, one thread for each model; the answer of each model is compared "
    "before. The template of PyTorch has learned what the models need. The other sides have eight clients and the same "
    "models, in the page cache: a fresh process for each request, which imports transformers, loads the model by "
    "from_pretrained and runs it; and processes that have imported it, and load the model for each request."
)


def many_models(setup: Setup) -> Figure:
    """Measure ours for minutes, then both other sides."""
    seconds, at_once = setup.seconds(60.0, 1.0), setup.size(8, 2)
    with setup.scratch() as folder:
        models, shape = zoo(setup, folder, setup.size(30, 3))
        with zoo_daemon(setup, folder, models, shape, _ROOM, predictor={"threads": 1}) as daemon:
            loads = _ours_of_many(setup, daemon.runtime_dir, models, at_once, seconds)
            with clients("transformers", models, at_once, daemon.runtime_dir) as processes:
                imported = processes.take(Load(_ZIPF, at_once, seconds))
        fresh = _fresh(models, at_once, setup.size(32, 2))
    compared = [_answered("answered, of all", loads)]
    for name, percentile, bar in (("p99", 0.99, Bar(">=", 8.0)), ("p50", 0.5, None)):
        ours = Samples(f"trims, {name}", [ns_of(each, name) for each in loads])
        for of, values, limit in (("fresh process", fresh, bar), ("imported", imported, None)):
            theirs = Samples(of, [Samples(of, values).percentile(percentile)])
            compared.append(
                Comparison(f"{name}, times sooner than {of}", theirs.median / ours.median, "x", limit, (ours, theirs))
            )
    cold = sum(part.cold or 0 for each in loads for part in each.models)
    note = f"{cold} of {sum(each.answered for each in loads)} answers found no predictor of their model."
    return Figure("many_models", _MANY, compared, [_MANY_NOTE, note])


def _ours_of_many(
    setup: Setup, runtime_dir: Path, models: Sequence[Model], at_once: int, seconds: float
) -> list[Workload]:
    from trims_bench.zoo import TOLERANCE, mean_of

    given = as_inputs(inputs("minilm", TORCH))
    with EndpointProcess(runtime_dir, "--preload", "torch") as endpoint:
        for _ in range(2):
            endpoint.infer(models[0].name, given, keep_alive=0)
            endpoint.await_spare("torch", models[0].name)
        for model in models:
            found = mean_of(*endpoint.infer(model.name, given))
            assert abs(found - model.answer) < TOLERANCE, f"{model.name} gave {found}, not {model.answer}"
        target = requests_to(endpoint, {model.name: in_binary(given) for model in models})
        popular = f"zipf:{_ZIPF}"
        return [
            load_of("closed", target, concurrency=at_once, duration=seconds, popularity=popular, seed=seed)
            for seed in range(setup.repeats(5))
        ]


def _fresh(models: Sequence[Model], at_once: int, count: int) -> list[int]:
    """Nanoseconds of so many requests, each by a process of its own."""

    def ask(model: dict[str, Any]) -> int:
        began = time.perf_counter_ns()
        call(answer_alone, model)
        return time.perf_counter_ns() - began

    following = chosen([{"folder": str(model.folder)} for model in models], _ZIPF, seed=0)
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(ask, [next(following) for _ in range(count)]))


PARTS = {
    "throughput": Part(_THROUGHPUT, throughput),
    "late": Part(_LATE, late),
    "together": Part(_TOGETHER, together),
    "many_models": Part(_MANY, many_models),
}
