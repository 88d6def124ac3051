"""Scenarios: which load is made, with which options, and how it is laid down before it begins."""

from __future__ import annotations

import hashlib
import math
import time
from array import array
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError
from trims_bench.workloads.arrival_files import read_arrivals
from trims_bench.workloads.arrivals import burst_times, poisson_times
from trims_bench.workloads.load import drive
from trims_bench.workloads.order import MOST_REQUESTS, Order, Server
from trims_bench.workloads.records import RECORD
from trims_bench.workloads.result import Run, Workload, summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from trims_bench.workloads.load import Driven


# Popularity: how requests are distributed over several models.

UNIFORM, ZIPF, PARETO = "uniform", "zipf", "pareto"
#: Default exponents.
_PARAMETERS = {UNIFORM: 0.0, ZIPF: 1.0, PARETO: 1.0}
_MOST_PARAMETER = 100.0


@dataclass(frozen=True, slots=True)
class Popularity:
    """Distribution of requests over models, the first named one being of rank 1.

    Attributes:
        kind: `uniform`; `zipf`, where the model of rank r is asked for as often as r ** -s; or `pareto`, where each
            model has a weight that is drawn once from a Pareto distribution with minimum 1 and exponent a.
        parameter: The exponent s or a.
    """

    kind: str = UNIFORM
    parameter: float = 0.0

    def __str__(self) -> str:
        return self.kind if self.kind == UNIFORM else f"{self.kind}:{self.parameter:g}"


def parse_popularity(text: str) -> Popularity:
    """Parse `uniform`, `zipf:S` or `pareto:A`; without a number the exponent is 1. Raises CallerError."""
    kind, colon, number = text.partition(":")
    if kind not in _PARAMETERS or (kind == UNIFORM and colon):
        raise CallerError(f"--popularity is {text!r:.80}; write uniform, zipf:S such as zipf:1.1, or pareto:A")
    try:
        parameter = float(number) if colon else _PARAMETERS[kind]
    except ValueError:
        parameter = math.nan
    least_ok = parameter > 0 if kind == PARETO else parameter >= 0
    if not least_ok or not parameter <= _MOST_PARAMETER:
        raise CallerError(f"--popularity is {text!r:.80}; its exponent must be a number above 0, such as {kind}:1")
    return Popularity(kind, parameter)


def shares(popularity: Popularity, models: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Return each model's part of all requests. Together they are 1."""
    import numpy as np

    if popularity.kind == ZIPF:
        weights = np.arange(1, models + 1, dtype=np.float64) ** -popularity.parameter
    elif popularity.kind == PARETO:
        weights = 1.0 + random.pareto(popularity.parameter, models)
    else:
        weights = np.ones(models)
    found: NDArray[np.float64] = weights / weights.sum()
    return found


def chosen(popularity: Popularity, models: int, count: int, random: np.random.Generator) -> NDArray[np.uint16]:
    """Draw which model each of `count` requests is for."""
    import numpy as np

    found: NDArray[np.uint16] = random.choice(models, count, p=shares(popularity, models, random)).astype(np.uint16)
    return found


SINGLE_STREAM, BATCHED, POISSON, BURST = "single-stream", "batched", "poisson", "burst"
CLOSED, MAX_RATE, REPLAY = "closed", "max-rate", "replay"
_ENDS = ("duration", "requests", "popularity")
#: Scenario -> options that it uses, beside those of all.
USES: Mapping[str, tuple[str, ...]] = {
    SINGLE_STREAM: _ENDS,
    BATCHED: (*_ENDS, "batch"),
    POISSON: (*_ENDS, "rate"),
    BURST: (*_ENDS, "rate", "burst_size"),
    CLOSED: (*_ENDS, "concurrency"),
    MAX_RATE: (*_ENDS, "rate", "bound_ms", "percentile"),
    REPLAY: ("duration", "requests", "arrivals", "time_scale"),
}
#: Options that all scenarios use.
OF_ALL = ("seed", "deadline_s", "connections")
_NEEDS = {POISSON: ("rate",), BURST: ("rate",), MAX_RATE: ("bound_ms",), REPLAY: ("arrivals",)}
_DEFAULTS: Mapping[str, Any] = {
    "popularity": "uniform", "batch": 8, "burst_size": 10, "concurrency": 8, "percentile": 99.0, "time_scale": 1.0,
    "seed": 1, "deadline_s": 60.0, "connections": 4096,
}  # fmt: skip
_DEFAULT_S, _DEFAULT_PROBE_S = 10.0, 5.0
_FIRST_RATE = 64.0
#: Option -> least and most value.
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "rate": (0.001, 1e6), "duration": (0.001, 1e6), "requests": (1, MOST_REQUESTS), "concurrency": (1, 65_536),
    "batch": (1, 65_536), "burst_size": (1, 100_000), "bound_ms": (0.001, 1e7), "percentile": (1.0, 99.99),
    "time_scale": (1e-6, 1e6), "seed": (0, (1 << 63) - 1), "deadline_s": (0.001, 1e6), "connections": (1, 65_536),
}  # fmt: skip
#: Connections that are made ahead: some, and for so many seconds of requests; over TLS, whose handshake takes the
#: server's time, for more.
_SOME, _AHEAD_S, _TLS_AHEAD_S, _MOST_AHEAD = 16, 0.05, 2.0, 1024


@dataclass(frozen=True, slots=True)
class Scenario:
    """Scenario with its options; None for those that it does not use.

    Attributes:
        name: One of `USES`.
        rate: Requests per second; of `max-rate` the first that is tried.
        duration: Seconds.
        requests: After how many it ends; of `max-rate`, how many each probe has at least.
        concurrency: Requests on their way at any time.
        batch: Rows of each request.
        burst_size: Requests at the same moment.
        bound_ms: Latency that is allowed at the percentile.
        arrivals: File that is replayed.
        time_scale: Seconds of the file in one second.
        popularity: Shares of the models; see `popularity`.
        deadline_s: Seconds from a request's intended time in which an answer counts.
    """

    name: str
    rate: float | None = None
    duration: float | None = None
    requests: int | None = None
    concurrency: int | None = None
    batch: int | None = None
    burst_size: int | None = None
    bound_ms: float | None = None
    percentile: float | None = None
    arrivals: str | None = None
    time_scale: float | None = None
    popularity: str | None = None
    seed: int = 1
    deadline_s: float = 60.0
    connections: int = 4096

    @property
    def options(self) -> dict[str, Any]:
        """Return the options that are used, as they are stored."""
        return {name: value for name, value in asdict(self).items() if name != "name" and value is not None}

    @property
    def seconds(self) -> float:
        """Return the duration; infinity without one."""
        return math.inf if self.duration is None else self.duration

    @property
    def most_requests(self) -> int:
        """Return after how many requests it ends."""
        return MOST_REQUESTS if self.requests is None else self.requests


@dataclass(frozen=True, slots=True)
class Target:
    """Server that is asked, and for what.

    Attributes:
        requests: A whole HTTP request for each.
    """

    server: Server
    models: Sequence[str]
    requests: Sequence[bytes]


def choose(name: str, given: Mapping[str, Any]) -> Scenario:
    """Return a scenario with options and defaults.

    Args:
        name: One of `USES`.
        given: What the user states; None for what is not stated.

    Raises:
        CallerError: An option is not used by the scenario, is needed and missing, or is out of range.
    """
    if name not in USES:
        raise CallerError(f"--scenario is {name!r:.80}; it must be one of {', '.join(USES)}")
    stated = {option: value for option, value in given.items() if value is not None}
    used = (*USES[name], *OF_ALL)
    _check(name, stated, used)
    values = {option: value for option, value in _DEFAULTS.items() if option in used}
    if name != REPLAY and "requests" not in stated:
        values["duration"] = _DEFAULT_PROBE_S if name == MAX_RATE else _DEFAULT_S
    if name == MAX_RATE:
        values["rate"] = _FIRST_RATE
    values |= stated
    if "popularity" in values:
        values["popularity"] = str(parse_popularity(values["popularity"]))
    if "arrivals" in values:
        values["arrivals"] = str(values["arrivals"])
    return Scenario(name, **values)


def _check(name: str, stated: Mapping[str, Any], used: Sequence[str]) -> None:
    for option in stated:
        if option not in used:
            usable = ", ".join(_flag(each) for each in USES[name])
            raise CallerError(f"{_flag(option)} has no meaning for the scenario {name}, which takes {usable}")
    for option in _NEEDS.get(name, ()):
        if option not in stated:
            raise CallerError(f"the scenario {name} needs {_flag(option)}")
    for option in stated.keys() & _BOUNDS:
        (least, most), value = _BOUNDS[option], stated[option]
        if not least <= value <= most:
            raise CallerError(f"{_flag(option)} is {value:g}; it must be from {least:g} to {most:g}")


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def run_scenario(
    scenario: Scenario, target: Target, progress: Callable[[int, int | None], None] = lambda _, __: None
) -> Workload:
    """Make the load of a scenario, except `max-rate`; see `probing`.

    Args:
        progress: Called now and then with how many requests are over, and how many there will be if that is known.

    Raises CallerError for a wrong file of arrivals.
    """
    order, seconds = lay_down(scenario, target)
    scheduled = scenario.requests if seconds is None else len(order.times_ns)

    def watch(driven: Driven) -> bool:
        progress(len(driven.packed) // RECORD.size, scheduled)
        return False

    return run_order(scenario, target, order, seconds, watch)[0]


def lay_down(scenario: Scenario, target: Target) -> tuple[Order, float | None]:
    """Return the order of a scenario, and the length of its schedule in seconds; None for a closed loop."""
    models = len(target.models)
    if scenario.name in (SINGLE_STREAM, BATCHED, CLOSED):
        return _closed(scenario, target), None
    if scenario.name == REPLAY:
        assert scenario.arrivals is not None, "checked"
        assert scenario.time_scale is not None, "checked"
        found = read_arrivals(
            Path(scenario.arrivals), _random(scenario, "times"), scenario.time_scale, scenario.seconds
        )
        times = found.times_ns[: scenario.requests]
        which = (found.functions[: len(times)] % models).astype("uint16")
    else:
        times = _times(scenario)
        which = _models(scenario, models, len(times))
    if not len(times):
        raise CallerError(f"no request comes within {scenario.seconds:g} s at that rate; state a longer --duration")
    seconds = scenario.seconds if math.isfinite(scenario.seconds) else max(float(times[-1]) / 1e9, 1e-9)
    if scenario.requests is not None and len(times) == scenario.requests:
        seconds = min(seconds, max(float(times[-1]) / 1e9, 1e-9))
    order = Order(
        target.server, target.requests, _array("H", which), _array("q", times), most_requests=len(times),
        deadline_ns=round(scenario.deadline_s * 1e9), most_connections=scenario.connections,
        connections_ahead=_ahead(target, len(times) / seconds, scenario.burst_size or 0),
    )  # fmt: skip
    return order, seconds


def _times(scenario: Scenario) -> NDArray[np.int64]:
    assert scenario.rate is not None, "checked"
    if scenario.name == BURST:
        assert scenario.burst_size is not None, "checked"
        return burst_times(scenario.rate, scenario.burst_size, seconds=scenario.seconds, requests=scenario.requests)
    random = _random(scenario, "times")
    return poisson_times(scenario.rate, random, seconds=scenario.seconds, requests=scenario.requests)


def _closed(scenario: Scenario, target: Target) -> Order:
    concurrency = scenario.concurrency or 1
    which = _models(scenario, len(target.models), min(scenario.most_requests, 1 << 16))
    return Order(
        target.server, target.requests, _array("H", which), concurrency=concurrency,
        most_requests=scenario.most_requests,
        most_ns=1 << 62 if scenario.duration is None else round(scenario.duration * 1e9),
        deadline_ns=round(scenario.deadline_s * 1e9), most_connections=scenario.connections,
        connections_ahead=min(concurrency, _MOST_AHEAD),
    )  # fmt: skip


def _models(scenario: Scenario, models: int, count: int) -> NDArray[np.uint16]:
    assert scenario.popularity is not None, "checked"
    return chosen(parse_popularity(scenario.popularity), models, count, _random(scenario, "models"))


def _random(scenario: Scenario, what: str) -> np.random.Generator:
    """Return random numbers of their own for times and models: another popularity leaves the times as they are."""
    import numpy as np

    return np.random.default_rng([scenario.seed, ("times", "models").index(what)])


def _ahead(target: Target, rate: float, burst: int) -> int:
    seconds = _TLS_AHEAD_S if target.server.tls else _AHEAD_S
    return min(_MOST_AHEAD, _SOME + max(burst, math.ceil(rate * seconds)))


def _array(kind: str, values: NDArray[Any]) -> array[int]:
    found = array(kind)
    found.frombytes(values.tobytes())
    return found


def run_order(
    scenario: Scenario,
    target: Target,
    order: Order,
    seconds: float | None,
    watch: Callable[[Driven], bool] = lambda _: False,
) -> tuple[Workload, Driven]:
    """Carry out the order of a scenario. Return the result and what was recorded."""
    digest = hashlib.blake2b(order.times_ns.tobytes() + order.models.tobytes(), digest_size=8).hexdigest()
    run = Run(len(order.times_ns) if seconds is not None else None, seconds, digest, time.time())
    driven = drive(order, watch)
    return summarize(scenario.name, scenario.options, target.models, run, driven), driven
