"""Result of a load: plain values, which a database can keep as one document."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError
from trims_bench.workloads.load import DONE
from trims_bench.workloads.max_rate import Probe
from trims_bench.workloads.records import COLD, LATE_NS, NEVER, UNKNOWN, is_answered, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from trims_bench.workloads.load import Driven

#: Version of the form of `Workload.as_json`.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from the intended time of a request to the end of its answer, of all that were answered."""

    p50: float
    p90: float
    p99: float
    p999: float
    longest: float


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One model's part of a load.

    Attributes:
        answered: Requests that were answered without an error.
        cold: Answers for which a predictor was started; None if the answers do not say it.
        latency: Latency of the answers; None without answers.
    """

    model: str
    requests: int
    answered: int
    cold: int | None
    latency: Latency | None
    cold_latency: Latency | None

    @property
    def cold_share(self) -> float | None:
        """Return the part of answers that were cold; None if that is not known."""
        return None if self.cold is None or not self.answered else self.cold / self.answered


@dataclass(frozen=True, slots=True)
class Workload:
    """Load of one scenario, and what came of it.

    Attributes:
        options: What was asked for, defaults included; see `scenarios.Scenario`.
        schedule: Digest of the schedule: equal options and seeds have equal ones.
        scheduled: Requests that were to be sent; of a closed loop those that were.
        requests: Requests that were due before the end.
        late: How many left more than 1 ms after their intended time, or never.
        answered: Requests that were answered without an error.
        errors: How many failed, by status of HTTP or `refused`, `closed` (in the middle of an answer), `deadline`,
            `unsent` (no connection was free), `no_http`, `no_connection`, `stopped` (on their way at an early end).
        rate_asked: Requests per second of the schedule; None for a closed loop.
        rate_sent: Requests per second that were sent.
        rate_answered: Answers without error per second, up to the last one.
        latency: Latency of the answers; None without answers.
        first_byte: Latency up to the first byte of the answer.
        models: Parts of the models.
        connections: Most that were open at once.
        generator_cpu_s: Processor time of the generator.
        scheduling: Policy of the kernel for it; see `load.Driven`.
        ended: `done`, `interrupted`, or why the generator ended before its time.
        max_rate: Highest rate that was held, for the scenario `max-rate`; None if there was none.
        probes: Rates that were tried for that.
    """

    scenario: str
    options: Mapping[str, Any]
    began_unix_s: float
    schedule: str
    scheduled: int
    requests: int
    sent: int
    late: int
    answered: int
    errors: Mapping[str, int]
    rate_asked: float | None
    rate_sent: float
    rate_answered: float
    latency: Latency | None
    first_byte: Latency | None
    models: tuple[ModelLoad, ...]
    connections: int
    generator_cpu_s: float
    scheduling: str
    ended: str = DONE
    max_rate: float | None = None
    probes: tuple[Probe, ...] = field(default=())

    @property
    def late_share(self) -> float:
        """Return the part of requests that were sent late."""
        return self.late / self.requests if self.requests else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Workload:
        """Return the result that `as_json` was called of. Raises CallerError for something else."""
        try:
            given = dict(value)
            if given.pop("version") != VERSION:
                raise ValueError("another version")
            given["latency"], given["first_byte"] = _latency(given["latency"]), _latency(given["first_byte"])
            given["models"] = tuple(
                ModelLoad(**{**each, **{name: _latency(each[name]) for name in ("latency", "cold_latency")}})
                for each in given["models"]
            )
            given["probes"] = tuple(Probe(**each) for each in given["probes"])
            return cls(**given)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CallerError(f"this is no result of a load of this version of trims: {error!r}") from error


def _latency(value: Mapping[str, float] | None) -> Latency | None:
    return None if value is None else Latency(**value)


@dataclass(frozen=True, slots=True)
class Run:
    """One load as it was laid down.

    Attributes:
        scheduled: Requests; None for a closed loop.
        seconds: Length of the schedule; None for a closed loop.
    """

    scheduled: int | None
    seconds: float | None
    digest: str
    began_unix_s: float


def summarize(scenario: str, options: Mapping[str, Any], models: Sequence[str], run: Run, driven: Driven) -> Workload:
    """Return the result of a load: percentiles of all its requests."""
    records = driven.records
    good = is_answered(records)
    answers = records[good]
    sent = records["sent"] != NEVER
    late = ~sent | (records["sent"] - records["intended"] > LATE_NS)
    statuses = [int(each) for each in records["status"][~good]]
    errors = {kind_of(status): statuses.count(status) for status in sorted(set(statuses), reverse=True)}
    last_s = float(records["intended"].max()) / 1e9 if len(records) else 0.0
    whole_s = run.seconds if run.seconds is not None and driven.ended == DONE else last_s
    until_s = max(whole_s, float(answers["done"].max()) / 1e9) if len(answers) else whole_s
    return Workload(
        scenario=scenario, options=options, began_unix_s=run.began_unix_s, schedule=run.digest,
        scheduled=len(records) if run.scheduled is None else run.scheduled, requests=len(records),
        sent=int(sent.sum()), late=int(late.sum()), answered=len(answers), errors=errors,
        rate_asked=None if not run.seconds else (run.scheduled or 0) / run.seconds,
        rate_sent=_per_second(int(sent.sum()), whole_s), rate_answered=_per_second(len(answers), until_s),
        latency=_percentiles(answers, "done"), first_byte=_percentiles(answers, "first"),
        models=tuple(_of_model(name, records[records["model"] == index]) for index, name in enumerate(models)),
        connections=driven.connections, generator_cpu_s=driven.cpu_s, scheduling=driven.scheduling,
        ended=driven.ended,
    )  # fmt: skip


def with_probes(result: Workload, max_rate: float | None, probes: Sequence[Probe]) -> Workload:
    """Return the load at the highest rate as the result of a search."""
    return replace(result, max_rate=max_rate, probes=tuple(probes))


def _of_model(name: str, records: NDArray[Any]) -> ModelLoad:
    answers = records[is_answered(records)]
    known = answers[answers["cold"] != UNKNOWN]
    cold = known[known["cold"] == COLD]
    return ModelLoad(
        name, len(records), len(answers), len(cold) if len(known) else None, _percentiles(answers, "done"),
        _percentiles(cold, "done"),
    )  # fmt: skip


def _percentiles(answers: NDArray[Any], until: str) -> Latency | None:
    import numpy as np

    if not len(answers):
        return None
    seconds = (answers[until] - answers["intended"]) / 1e9
    return Latency(*(float(each) for each in np.percentile(seconds, [50, 90, 99, 99.9, 100])))


def _per_second(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 and math.isfinite(seconds) else 0.0
