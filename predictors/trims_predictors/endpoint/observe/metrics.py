"""Metrics of the endpoint for Prometheus: counts and times of requests, and the state of its predictors.

A registry of its own, so that two endpoints in one process would not mix. Only models that are registered become
labels, and at most `MOST_MODELS` of them: a client that makes names up costs no memory. Not covered: the figures of the
daemon (`daemon_figures`).
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.requests import ClientDisconnect

from trims.core.errors import TrimsError
from trims_predictors.endpoint.bodies import TooLargeBodyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from trims_predictors.deployment.deployment import Answer

#: Models with labels of their own; each has about 60 series, and 100 once it was started cold.
MOST_MODELS = 256
#: Stands for models that are not registered, and for those beyond the first `MOST_MODELS`.
OTHER = "(other)"
#: Seconds of the histograms' buckets, from a warm answer to a cold start that reads gigabytes.
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: Powers of ten: a model has up to twelve stages, so each bucket of theirs costs a kilobyte of every page.
STAGE_BUCKETS_S = (0.001, 0.01, 0.1, 1.0, 10.0)
#: Stages of `Answer.stages`; without a fixed list, a predictor could make labels.
STAGES = (
    "queue", "process", "connect", "open", "import", "load", "input", "preprocess", "predict", "postprocess", "output",
    "run",
)  # fmt: skip
#: Phases of a load, which partition it: a process, what it does there, and what none of these accounts for.
PHASES = ("process", "connect", "open", "import", "load", "unattributed")
#: Outcomes that are no errors of trims's tree.
ANSWERED, CANCELLED, TOO_LARGE, BUG = "ok", "cancelled", "too_large_body", "internal"


class Counting:
    """One request, from its arrival on."""

    def __init__(self) -> None:
        self.answer: Answer | None = None


class Metrics:
    """Counts and times of requests since the endpoint began. Used in its event loop; `page` may run in a thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._registered: set[str] = set()
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "trims_requests", "Inference requests by outcome: ok, or the code of the error.",
            ("model", "protocol", "code"), registry=self._registry,
        )  # fmt: skip
        self._answers = Counter(
            "trims_answers", "Answered requests: cold if a predictor was started after the request had come.",
            ("model", "start"), registry=self._registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "trims_request_seconds", "From the arrival of an answered request to its answer.",
            ("model", "protocol"), registry=self._registry, buckets=BUCKETS_S,
        )  # fmt: skip
        self._stages = Histogram(
            "trims_stage_seconds",
            "Stages of answered requests; process, connect, open, import and load only of cold ones.",
            ("model", "stage"), registry=self._registry, buckets=STAGE_BUCKETS_S,
        )  # fmt: skip

        self._loads = Histogram(
            "trims_load_seconds", "From the order for a predictor to its loaded model, also ahead of need.",
            ("model", "place"), registry=self._registry, buckets=BUCKETS_S,
        )  # fmt: skip
        self._phases = Histogram(
            "trims_load_phase_seconds", "Phases of loads, which add up to them; unattributed is what is left.",
            ("phase", "model", "place"), registry=self._registry, buckets=STAGE_BUCKETS_S,
        )  # fmt: skip

    def register(self, model: str) -> None:
        """Give a model labels of its own: the daemon knows it."""
        if len(self._registered) < MOST_MODELS:
            self._registered.add(model)

    def forget(self, model: str) -> None:
        """Drop the labels of a model that is not registered any more."""
        if model in self._registered:
            self._registered.discard(model)
            for metric in (
                self._requests, self._answers, self._seconds, self._stages, self._loads, self._phases,
            ):  # fmt: skip
                metric.remove_by_labels({"model": model})

    @contextmanager
    def request(self, model: str, protocol: str) -> Iterator[Counting]:
        """Count what the block does as one request. It sets `answer`; a block that ends without it was cancelled."""
        began, counting, code = self._clock(), Counting(), CANCELLED
        try:
            yield counting
            code = CANCELLED if counting.answer is None else ANSWERED
        except TrimsError as error:
            code = error.code
            raise
        except ClientDisconnect:
            code = CANCELLED
            raise
        except TooLargeBodyError:
            code = TOO_LARGE
            raise
        except Exception:
            code = BUG
            raise
        finally:
            label = model if model in self._registered else OTHER
            self._requests.labels(label, protocol, code).inc()
            if code == ANSWERED and counting.answer is not None:
                self._seconds.labels(label, protocol).observe(self._clock() - began)
                self._count(label, counting.answer)

    def loaded(self, model: str, place: str, phases: Mapping[str, float]) -> None:
        """Count a predictor that has loaded a model.

        Args:
            phases: Seconds by phase, named as in `Answer.stages`; others than `PHASES` count as unattributed.
        """
        label = model if model in self._registered else OTHER
        total = sum(phases.values())
        self._loads.labels(label, place).observe(total)
        known = {name: phases.get(f"{name}_s", 0.0) for name in PHASES[:-1]}
        known["unattributed"] = max(0.0, total - sum(known.values()))
        for name, seconds in known.items():
            self._phases.labels(name, label, place).observe(seconds)

    def refused(self, protocol: str, error: TrimsError) -> None:
        """Count a request that was refused before it was known which model it is for."""
        self._requests.labels(OTHER, protocol, error.code).inc()

    def _count(self, label: str, answer: Answer) -> None:
        self._answers.labels(label, "cold" if answer.cold else "warm").inc()
        for stage in STAGES:
            seconds = answer.stages.get(f"{stage}_s")
            if seconds is not None:
                self._stages.labels(label, stage).observe(seconds)

    def page(self, report: Mapping[str, Any], daemon: Iterable[Metric]) -> bytes:
        """Everything in Prometheus's text format.

        Args:
            daemon: The daemon's figures.
        """
        return generate_latest(_Found([*_of_requests(self._registry), *_of_pool(report), *daemon]))


class _Found:
    """Metrics that were collected already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        return self._metrics


def _of_requests(registry: CollectorRegistry) -> Iterator[Metric]:
    for metric in registry.collect():
        # The time at which each series began: one more series for each, and only a global switch turns it off.
        metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
        yield metric


def _of_pool(report: Mapping[str, Any]) -> Iterator[Metric]:
    predictors = GaugeMetricFamily("trims_predictors", "Predictors by model and state.", labels=("model", "state"))
    queued = GaugeMetricFamily("trims_queued_requests", "Requests that wait for a predictor.", labels=("model",))
    for model, line in report["models"].items():
        queued.add_metric((model,), line["queued"])
        for state in ("starting", "idle", "busy"):
            predictors.add_metric((model, state), line[state])
    spares = GaugeMetricFamily("trims_spares", "Predictors that are ready for any model.", labels=("framework",))
    for framework, count in report["spares"].items():
        spares.add_metric((framework,), count)
    hot = GaugeMetricFamily("trims_hot_spares", "Predictors that have loaded a model already.", labels=("model",))
    for model, count in report["hot"].items():
        hot.add_metric((model,), count)
    yield from _on_devices(report["device_spares"])
    started = CounterMetricFamily(
        "trims_predictors_started",
        "Predictors by what they were: hot, device_spare, spare, forked or spawned.",
        labels=("how",),
    )
    for how in ("hot", "device_spare", "spare", "forked", "spawned"):
        started.add_metric((how,), report["counters"].get(f"started_{how}", 0))
    ended = CounterMetricFamily("trims_predictors_ended", "Predictors that have ended, for whatever reason.")
    ended.add_metric((), report["counters"].get("ended", 0))
    yield from (predictors, queued, spares, hot, started, ended)
    for event, text in (("started", "Templates that were started."), ("ended", "Templates that have ended.")):
        family = CounterMetricFamily(f"trims_templates_{event}", text, labels=("framework",))
        for framework, counted in report["templates"].items():
            family.add_metric((framework,), counted[event])
        yield family
    nbytes = GaugeMetricFamily(
        "trims_template_bytes",
        "Anonymous memory of templates, spares and hot spares; of what they share with predictors, their part.",
        labels=("framework",),
    )
    for framework, counted in report["templates"].items():
        nbytes.add_metric((framework,), counted["bytes"])
    yield nbytes


def _on_devices(spares: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    number = GaugeMetricFamily(
        "trims_device_spares", "Processes that wait on a device without weights.", labels=("place", "framework")
    )
    nbytes = GaugeMetricFamily(
        "trims_device_spare_bytes", "Bytes of these processes on the device.", labels=("place", "framework")
    )
    found: dict[tuple[str, str], list[int]] = {}
    for each in spares:
        found.setdefault((each["place"], each["framework"]), []).append(each["bytes"])
    for labels, counted in found.items():
        number.add_metric(labels, len(counted))
        nbytes.add_metric(labels, sum(counted))
    yield from (number, nbytes)
