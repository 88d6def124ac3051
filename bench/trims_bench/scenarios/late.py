"""Requests sent late by the load generator of `trims eval --scenario`, while the endpoint that it asks stands still."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import TYPE_CHECKING

from trims_bench.endpoint import EndpointProcess
from trims_bench.figures import Bar, Comparison, Figure, Samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims_predictors.workloads.result import Workload
    from trims_predictors.workloads.scenarios import Target

    from trims_bench.scenarios.base import Setup

TITLE = "requests that the load generator sends late while the endpoint stands still for 2 s"
_NAME = "dense"
_WIDTH = 64
_RATE = 500.0
#: Seconds of a load, until the endpoint is stopped, and until it goes on; those of a quick run.
_TIMES, _QUICK = (6.0, 1.0, 2.0), (1.0, 0.2, 0.4)
#: Further rates, without a stall.
_RATES = (1000.0, 2000.0)
_NOTE = (
    "Poisson arrivals at {rate:g} a second of a model of two dense layers in JSON; the endpoint's process is stopped "
    "(SIGSTOP) in the middle. Late: sent more than 1 ms after the intended time. The generator's scheduling was "
    "{scheduling}. The closed loop of 8 beside it shows what it hides: its p99 has no stall in it."
)


def run(setup: Setup) -> Figure:
    """Loads in turns: open with a stall, and closed with one."""
    from trims_bench.small import manifest, write_weights

    with setup.scratch() as folder, setup.daemon() as daemon:
        weights = write_weights(folder / "small.npz")
        daemon.load(daemon.register(manifest(_NAME, weights, "dense", [-1, _WIDTH], instances=1)))
        with EndpointProcess(daemon.runtime_dir, "--hot-spares", "0", "--queue", "10000") as endpoint:
            target = _target(endpoint.port)
            turns = setup.repeats(5)
            opened = [_stalled(setup, endpoint.pid, "poisson", target) for _ in range(turns)]
            closed = [_stalled(setup, endpoint.pid, "closed", target) for _ in range(turns)]
            faster = [] if setup.quick else [_load("poisson", target, 6.0, rate) for rate in _RATES]
    notes = [_NOTE.format(rate=_RATE, scheduling=opened[0].scheduling)]
    notes += [f"At {each.rate_asked:.0f}/s without a stall: {each.late_share:.2%} late." for each in faster]
    return Figure("late", TITLE, [*_compared(opened, closed)], notes)


def _compared(opened: list[Workload], closed: list[Workload]) -> Iterator[Comparison]:
    counts = Samples("requests", [each.requests for each in opened], "requests")
    worst = max(each.late_share for each in opened) * 100
    yield Comparison(
        "sent more than 1 ms late while it stands still, worst turn", worst, "%", Bar("<=", 1.0), (counts,)
    )
    open_p99, closed_p99 = (
        Samples(what, [max(1, round(each.latency.p99 * 1e9)) for each in loads if each.latency is not None])
        for what, loads in (("open loop", opened), ("closed loop", closed))
    )
    yield Comparison(
        "p99 of the latency, open loop beside closed", open_p99.median / 1e6, "ms", None, (open_p99, closed_p99)
    )
    answered = sum(each.answered for each in opened) / sum(each.requests for each in opened)
    yield Comparison("answered, of all", answered, "x", Bar(">=", 1.0), (counts,))


def _stalled(setup: Setup, pid: int, scenario: str, target: Target) -> Workload:
    seconds, until_s, stall_s = _QUICK if setup.quick else _TIMES
    rate = _RATE if scenario == "poisson" else None
    timers = [
        threading.Timer(until_s, os.kill, (pid, signal.SIGSTOP)),
        threading.Timer(until_s + stall_s, os.kill, (pid, signal.SIGCONT)),
    ]
    for timer in timers:
        timer.start()
    try:
        return _load(scenario, target, seconds, rate)
    finally:
        for timer in timers:
            timer.join()


def _load(scenario: str, target: Target, seconds: float, rate: float | None) -> Workload:
    from trims_predictors.workloads.scenarios import choose, run_scenario

    return run_scenario(choose(scenario, {"rate": rate, "duration": seconds}), target)


def _target(port: int) -> Target:
    from trims_predictors.workloads.order import Server, http_request
    from trims_predictors.workloads.scenarios import Target

    tensor = {"name": "x", "datatype": "FP32", "shape": [1, _WIDTH], "data": [0.5] * _WIDTH}
    body = json.dumps({"inputs": [tensor]}).encode()
    path = f"/v2/models/{_NAME}/infer"
    return Target(Server("127.0.0.1", port), [_NAME], [http_request(path, f"127.0.0.1:{port}", body, {})])
