"""The spans of one request, as the SDK has them; their export is in tests/e2e/test_traces.py."""

from __future__ import annotations

import asyncio
import logging
import logging.config
import time
from typing import TYPE_CHECKING, Any

import pytest
from trims_predictors.deployment.deployment import Answer

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="no SDK: pip install 'trims[otel]'")
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from trims_predictors.endpoint.observe.otlp import _START, Complaints, RequestSpan, Tracing
from trims_predictors.endpoint.observe.outcomes import Outcome

from trims.core.errors import PredictorError

if TYPE_CHECKING:
    from collections.abc import Mapping

ANSWERED, FAILED = Outcome({"told": 1}, failed=False), Outcome({"told": 2}, failed=True)
PLAN: Any = type("Deployment", (), {"version": "1.0.0"})
WARM = {"queue_s": 0.5, "input_s": 0.1, "predict_s": 0.2, "output_s": 0.1, "run_s": 0.5}
COLD = {
    **WARM,
    "process_s": 0.1,
    "connect_s": 0.0,
    "open_s": 0.1,
    "import_s": 0.1,
    "load_s": 0.1,
    "unattributed_s": 0.05,
}


class Spans:
    """A request's span, and all that have ended."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        self._provider = TracerProvider(shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(self._kept))
        tracer = self._provider.get_tracer("test")
        self.request = RequestSpan(tracer, tracer.start_span("request"))

    def end(self, error: Exception | None = None, outcome: Outcome = ANSWERED) -> None:
        self.request.end(error, outcome, time.time_ns())

    def ended(self, name: str) -> list[Any]:
        return [span for span in self._kept.get_finished_spans() if span.name == name]

    def lengths(self) -> dict[str, int]:
        """Milliseconds of each span but the request's own."""
        found = {each.name: each.end_time - each.start_time for each in self._kept.get_finished_spans()}
        return {name: round(length / 1e6) for name, length in found.items() if name != "request"}


def answer(stages: Mapping[str, float], *, cold: bool = False) -> Answer:
    return Answer([], cold, "forked" if cold else "running", "cpu", True, 2, stages)


def test_the_stages_of_a_cold_answer_have_their_lengths_within_queue_and_run() -> None:
    spans = Spans()
    spans.request.begin_run()
    spans.request.answered(PLAN, answer(COLD, cold=True))
    spans.end()
    assert spans.lengths() == {
        "queue": 500, "process": 100, "connect": 0, "open": 100, "import": 100, "load": 100, "run": 500, "input": 100,
        "predict": 200, "output": 100,
    }  # fmt: skip
    ((queue,), (load,), (run,)) = (spans.ended(name) for name in ("queue", "load", "run"))
    assert load.end_time == queue.end_time == run.start_time
    ((begin,), (end,)) = spans.ended("input"), spans.ended("output")
    assert begin.start_time - run.start_time == run.end_time - end.end_time
    (request,) = spans.ended("request")
    phases = {name: request.attributes[f"trims.load_phase_seconds.{name}"] for name in (*_START, "unattributed")}
    assert sum(phases.values()) == pytest.approx(request.attributes["trims.load_seconds"])
    assert {name: value for name, value in request.attributes.items() if "load" not in name} == {
        "faas.coldstart": True, "trims.model.version": "1.0.0", "trims.predictor": "forked", "trims.place": "cpu",
        "trims.resident": True, "trims.batch_size": 2, "told": 1,
    }  # fmt: skip


def test_the_stages_of_a_warm_answer_have_no_start() -> None:
    spans = Spans()
    spans.request.begin_run()
    spans.request.answered(PLAN, answer(WARM))
    spans.end()
    assert spans.lengths().keys() == {"queue", "run", "input", "predict", "output"}


def test_a_start_that_is_longer_than_the_queue_begins_with_it() -> None:
    spans = Spans()
    spans.request.begin_run()
    spans.request.answered(PLAN, answer({**COLD, "process_s": 9.0}, cold=True))
    spans.end()
    ((queue,), (process,)) = spans.ended("queue"), spans.ended("process")
    assert process.start_time == queue.start_time


def test_a_run_that_begins_once_more_is_another_span() -> None:
    spans = Spans()
    first, second = spans.request.begin_run(), spans.request.begin_run()
    assert first["traceparent"] != second["traceparent"]
    spans.request.answered(PLAN, answer(WARM))
    spans.end()
    assert [f"{run.context.span_id:016x}" in second["traceparent"] for run in spans.ended("run")] == [False, True]


def test_a_run_that_fails_ends_with_its_request() -> None:
    spans = Spans()
    spans.request.begin_run()
    spans.end(PredictorError("it: fails"), FAILED)
    ((request,), (run,)) = spans.ended("request"), spans.ended("run")
    assert [request.status.status_code, run.status.status_code] == [StatusCode.ERROR, StatusCode.ERROR]
    (event,) = request.events
    assert event.attributes == {"exception.type": "PredictorError", "exception.message": "it: fails"}


def test_a_request_that_is_refused_is_no_failure_of_the_server() -> None:
    spans = Spans()
    spans.request.set_status(404)
    spans.end(PredictorError("no"))
    (request,) = spans.ended("request")
    assert request.status.status_code is StatusCode.UNSET
    assert request.attributes == {"told": 1, "http.response.status_code": 404}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the endpoint's log lines about traces."""
    found: list[str] = []
    monkeypatch.setattr(
        "trims_predictors.endpoint.observe.otlp._log.warning", lambda text, *given: found.append(text % given)
    )
    return found


def test_what_the_sdk_says_is_told_once_a_minute_and_without_its_story(told: list[str]) -> None:
    now = 100.0
    complaints = Complaints(lambda: now)
    log = logging.getLogger("opentelemetry.exporter.anything")
    assert not complaints.are_recent()
    for _ in range(3):
        log.error("nothing listens at %s", "there", exc_info=ValueError("long"))
    assert told == ["traces: nothing listens at there (told once a minute)"]
    assert complaints.are_recent()
    now = 160.0
    assert not complaints.are_recent()
    log.warning("still not")
    assert len(told) == 2
    complaints.leave()
    assert logging.getLogger("opentelemetry").propagate


def test_logging_that_is_configured_meanwhile_changes_nothing(told: list[str]) -> None:
    complaints = Complaints()
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})  # as uvicorn does
    logging.getLogger("opentelemetry.sdk").error("down")
    complaints.leave()
    assert len(told) == 1


def test_the_service_has_a_name_of_its_own_unless_it_is_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, name in (("", "trims-endpoint"), ("mine", "mine")):
        monkeypatch.setenv("OTEL_SERVICE_NAME", given)
        tracing = Tracing()
        assert tracing._provider.resource.attributes["service.name"] == name
        asyncio.run(tracing.close())
