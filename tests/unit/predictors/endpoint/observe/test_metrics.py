"""The page of metrics: what is counted, under which labels, and in the format that Prometheus reads."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import subprocess
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from repository import ROOT
from trims_predictors.deployment.deployment import Answer
from trims_predictors.endpoint.bodies import TooLargeBodyError
from trims_predictors.endpoint.observe.daemon_metrics import figures
from trims_predictors.endpoint.observe.metrics import MOST_MODELS, OTHER, PHASES, STAGES, Metrics

from trims.control import Stats, Tier
from trims.core.errors import BusyError

REPORT: Any = {
    "models": {"m": {"queued": 3, "starting": 1, "idle": 0, "busy": 2}},
    "spares": {"torch": 1},
    "hot": {"m": 2},
    "device_spares": [
        {"place": "gpu:0", "framework": "torch", "pid": 7, "bytes": 5, "model": "m"},
        {"place": "gpu:0", "framework": "torch", "pid": 8, "bytes": 6, "model": "n"},
    ],
    "learning": [],
    "templates": {"torch": {"started": 2, "ended": 1, "bytes": 4096}},
    "counters": {"started_spare": 4, "started_spawned": 1, "ended": 2},
}
STATS = Stats(
    counters={"opens": 7, "fills.cpu": 2, "filled_bytes.cpu": 4096, "refused.capacity": 1},
    tiers=(Tier("cpu", 100, 40, 2, "lru"), Tier("file", 0, 9, 1, "lru")),
    sessions=3, leases=4, uptime_s=5.5, devices=(), gpu_off="", unverified_bytes=0, max_files=1024, max_sessions=8,
    max_images=8, images=2,
)  # fmt: skip


def answer(*, cold: bool = False) -> Answer:
    start = {"process_s": 0.002, "connect_s": 0.001, "open_s": 0.003, "load_s": 0.5} if cold else {}
    stages = {"queue_s": 0.001, "predict_s": 0.004, "run_s": 0.005, "made_up_s": 1.0, **start}
    return Answer([], cold=cold, how="spare" if cold else "running", place="cpu", warm=True, batch=1, stages=stages)


class Page:
    """Page as Prometheus would read it: a series by its name and the values of its labels, in any order."""

    def __init__(self, metrics: Metrics) -> None:
        text = metrics.page(REPORT, figures(STATS)).decode()
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        self._values = {(each.name, frozenset(each.labels.values())): each.value for each in self.samples}

    def __call__(self, name: str, *labels: str) -> float | None:
        return self._values.get((name, frozenset(labels)))


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics()
    made.register("m")
    for cold in (True, False):
        with made.request("m", "http") as counting:
            counting.answer = answer(cold=cold)
    return made


def test_answers_are_counted_with_their_stages(metrics: Metrics) -> None:
    found = Page(metrics)
    assert found("trims_requests_total", "m", "http", "ok") == 2
    assert (found("trims_answers_total", "m", "cold"), found("trims_answers_total", "m", "warm")) == (1, 1)
    assert found("trims_request_seconds_count", "m", "http") == 2
    assert found("trims_stage_seconds_count", "m", "queue") == 2
    assert found("trims_stage_seconds_sum", "m", "load") == 0.5
    assert found("trims_stage_seconds_bucket", "m", "load", "0.1") == 0
    assert found("trims_stage_seconds_bucket", "m", "load", "10.0") == 1
    stages = {sample.labels["stage"] for sample in found.samples if sample.name == "trims_stage_seconds_count"}
    assert stages <= set(STAGES), "a predictor makes no labels"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BusyError("full"), "busy"),
        (TooLargeBodyError(), "too_large_body"),
        (ZeroDivisionError(), "internal"),
        (asyncio.CancelledError(), "cancelled"),
        (None, "cancelled"),
    ],
)
def test_a_request_without_an_answer_is_counted_by_its_error(error: Any, code: str) -> None:
    metrics = Metrics()
    metrics.register("m")
    with contextlib.suppress(*(() if error is None else (type(error),))), metrics.request("m", "grpc"):
        if error is not None:
            raise error
    found = Page(metrics)
    assert found("trims_requests_total", "m", "grpc", code) == 1
    assert found("trims_request_seconds_count", "m", "grpc") is None


def test_only_registered_models_become_labels_and_not_too_many() -> None:
    metrics = Metrics()
    for number in range(MOST_MODELS + 5):
        metrics.register(f"m{number}")
    for name in ("m0", "made-up", "invented", f"m{MOST_MODELS}"):
        with metrics.request(name, "http") as counting:
            counting.answer = answer()
    found = Page(metrics)
    models = {sample.labels["model"] for sample in found.samples if sample.name == "trims_requests_total"}
    assert models == {"m0", OTHER}
    assert found("trims_requests_total", OTHER, "http", "ok") == 3


def test_phases_of_a_load_add_up_to_it(metrics: Metrics) -> None:
    metrics.loaded("m", "cpu", {"process_s": 1.0, "open_s": 0.5, "unattributed_s": 0.25, "made_up_s": 0.25})
    metrics.loaded("made-up", "cpu", {})
    found = Page(metrics)
    assert (found("trims_load_seconds_sum", "m", "cpu"), found("trims_load_seconds_count", "m", "cpu")) == (2.0, 1)
    phases = {name: found("trims_load_phase_seconds_sum", name, "m", "cpu") for name in PHASES}
    assert phases == {"process": 1.0, "connect": 0, "open": 0.5, "import": 0, "load": 0, "unattributed": 0.5}
    assert found("trims_load_seconds_count", OTHER, "cpu") == 1


def test_a_model_that_is_removed_loses_its_series(metrics: Metrics) -> None:
    metrics.loaded("m", "cpu", {"process_s": 1.0})
    metrics.forget("m")
    metrics.forget("unknown")
    names = {sample.name for sample in Page(metrics).samples}
    assert "trims_predictors" in names
    assert not [name for name in names if name.startswith(("trims_requests", "trims_stage", "trims_load"))]


def test_the_pool_and_the_daemon_are_on_the_same_page(metrics: Metrics) -> None:
    found = Page(metrics)
    assert found("trims_predictors", "m", "busy") == 2
    assert found("trims_queued_requests", "m") == 3
    assert found("trims_spares", "torch") == 1
    assert found("trims_hot_spares", "m") == 2
    assert found("trims_predictors_started_total", "forked") == 0
    assert found("trims_predictors_started_total", "spawned") == 1
    assert found("trims_predictors_ended_total") == 2
    assert found("trims_templates_started_total", "torch") == 2
    assert found("trims_templates_ended_total", "torch") == 1
    assert found("trims_template_bytes", "torch") == 4096
    assert found("trims_daemon_resident_bytes", "cpu") == 40


@pytest.mark.parametrize(("starts", "most_bytes"), [((False,), 5000), ((True, False), 8000)])
def test_each_model_costs_a_few_thousand_bytes_of_the_page(starts: tuple[bool, ...], most_bytes: int) -> None:
    """Measure what ten more models add; all stages but those of steps, which few models have."""

    def page(count: int) -> int:
        metrics, models = Metrics(), [f"model-{number:03}" for number in range(count)]
        report = {**REPORT, "hot": {}, "device_spares": [], "models": dict.fromkeys(models, REPORT["models"]["m"])}
        steps = ("process", "connect", "open", "import", "load"), ("queue", "input", "predict", "output", "run")
        for model in models:
            metrics.register(model)
            for cold in starts:
                stages = {f"{stage}_s": 0.01 for stage in (steps[0] if cold else ()) + steps[1]}
                with metrics.request(model, "http") as counting:
                    counting.answer = dataclasses.replace(answer(cold=cold), stages=stages)
        return len(metrics.page(report, []))

    assert (page(20) - page(10)) / 10 < most_bytes


def test_no_series_tells_when_another_one_began(metrics: Metrics) -> None:
    assert not [sample for sample in Page(metrics).samples if sample.name.endswith("_created")]


def test_two_endpoints_in_one_process_count_apart(metrics: Metrics) -> None:
    other = Metrics()
    assert Page(metrics)("trims_requests_total", "m", "http", "ok") == 2
    assert Page(other)("trims_requests_total", "m", "http", "ok") is None


#: Path of promtool, where `make clients-env` puts it, or where it is installed.
PROMTOOL = shutil.which("promtool", path=f"{ROOT / '.venv-clients' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_finds_nothing_to_object_to(metrics: Metrics) -> None:
    page = metrics.page(REPORT, figures(STATS))
    done = subprocess.run([str(PROMTOOL), "check", "metrics"], input=page, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
