"""Spans of requests: what asks for them, and what is recorded where; tests/e2e/test_traces.py has whole traces."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from asgi import call
from generating import PARTS, Generator
from nursing import until
from trims_predictors.deployment.deployment import Answer
from trims_predictors.endpoint.grpc.service import code_of
from trims_predictors.endpoint.http.app import build_app
from trims_predictors.endpoint.observe.tracing import carrier_of, grpc_span, http_span, is_wanted, make_exporter

from trims.core.errors import CallerError, ConfigError, PredictorError
from trims.trace import spans
from trims.trace.context import SpanContext
from trims.trace.levels import Level
from trims.trace.reader import read_traces
from trims.trace.span import FAILURE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trims_predictors.endpoint.observe.tracing import RequestSpan

    from trims.trace.span import Span

URL = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "mine"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (URL, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**URL, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**URL, "OTEL_SDK_DISABLED": "True"}, False),
        ({**URL, "OTEL_SDK_DISABLED": "false"}, True),
        ({**URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
    ],
)
def test_the_standard_variables_switch_traces_on(environment: Mapping[str, str], wanted: bool) -> None:
    assert is_wanted(environment) is wanted


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"OTEL_TRACES_EXPORTER": "console"},
            "OTEL_TRACES_EXPORTER is 'console'; the endpoint exports by otlp, or none",
        ),
        (
            {**URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "'grpc' is not offered; set OTEL_EXPORTER_OTLP_PROTOCOL=http/",
        ),
        ({**URL, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "the OTLP protocol 'http/json' is not offered"),
    ],
)
def test_what_is_not_offered_is_refused_with_the_remedy(environment: Mapping[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        is_wanted(environment)


def test_packages_that_are_missing_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "trims.trace.export.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"opentelemetry\..* is missing: pip install .*\[otel\]', or set OTEL_SDK_"):
        make_exporter(URL)


def test_a_value_that_the_sdk_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="no SDK: pip install 'trims[otel]'")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")  # less than what is sent at once
    with pytest.raises(ConfigError, match=r"OpenTelemetry's variables \(OTEL_\*\) cannot be used: ValueError: max_"):
        make_exporter(URL)


def test_without_the_variables_neither_sdk_nor_exporter_is_imported() -> None:
    code = (
        "import sys, trims_predictors.endpoint.main as main\nassert main.make_exporter({}) is None\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_files_and_collector_a_request_has_no_span_and_is_not_looked_at() -> None:
    nothing: Any = type("Nothing", (), {"headers": {}, "invocation_metadata": lambda _: ()})()
    with (
        http_span(None, nothing, "/", "m") as over_http,
        grpc_span(None, nothing, "ModelInfer", model="m", server=("", 0), code_of=code_of) as over_grpc,
    ):
        assert (over_http, over_grpc) == (None, None)


def test_exactly_one_traceparent_is_a_context() -> None:
    parent = ("traceparent", "00-1-2-01")
    assert carrier_of([("host", "x"), parent]) == {"traceparent": "00-1-2-01", "tracestate": ""}
    assert carrier_of([parent, ("tracestate", "a=1"), ("tracestate", "b=2")])["tracestate"] == "a=1,b=2"
    assert carrier_of([parent, parent]) == carrier_of([("tracestate", "a=1")]) == carrier_of([]) == {}
    assert carrier_of([("traceparent", b"bytes")]) == {}


DEPLOYMENT: Any = type("Deployment", (), {"version": "1.0.0"})
WARM = {"queue_s": 0.5, "input_s": 0.1, "predict_s": 0.2, "output_s": 0.1, "run_s": 0.5}
PHASES = {"process_s": 0.1, "connect_s": 0.0, "open_s": 0.1, "import_s": 0.1, "load_s": 0.1, "unattributed_s": 0.05}
COLD = {**WARM, **PHASES}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Kept:
    """Stand-in for the exporter: keeps spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def sample(self, carrier: Mapping[str, str]) -> tuple[SpanContext, str, int]:
        del carrier
        return SpanContext(TRACE, PARENT), "mine=1", 1

    def offer(self, span: Span, state: str) -> None:
        assert state == "mine=1"
        self.spans.append(span)

    def named(self, name: str) -> list[Span]:
        return [each for each in self.spans if each.name == name]

    def milliseconds(self) -> dict[str, int]:
        """Return the length of each stage and the run."""
        return {each.name: round((each.end_ns - each.start_ns) / 1e6) for each in self.spans[1:-1]}


def ask(exporter: Any, work: Any, caller: tuple[tuple[str, str], ...] = ()) -> None:
    """Carry out a request over gRPC: `work` is given its span."""

    async def request() -> None:
        context: Any = type("Context", (), {"invocation_metadata": lambda _: caller})()
        with grpc_span(exporter, context, "ModelInfer", model="m", server=("", 0), code_of=code_of) as span:
            work(span)

    async def whole() -> None:
        try:
            await request()
        finally:
            await asyncio.sleep(0)  # spans are made after the answer

    asyncio.run(whole())


def answered(stages: Mapping[str, float], *, cold: bool = False) -> Kept:
    """Return the spans of a request that came at the second 0 and was answered with these stages."""

    def answer(span: RequestSpan) -> None:
        span.begin_run(0.0, 2)
        span.answered(DEPLOYMENT, Answer([], cold, "forked" if cold else "running", "cpu", True, 2, stages))

    ask(kept := Kept(), answer)
    return kept


def test_the_stages_of_a_cold_answer_have_their_lengths_within_queue_and_run() -> None:
    kept = answered(COLD, cold=True)
    assert kept.milliseconds() == {
        "process": 100, "connect": 0, "open": 100, "import": 100, "load": 100, "run": 500, "input": 100, "predict": 200,
        "output": 100,
    }  # fmt: skip
    ((queue,), (load,), (run,)) = (kept.named(name) for name in ("queue", "load", "run"))
    assert (queue.start_ns, load.end_ns, queue.end_ns) == (0, run.start_ns, run.start_ns)
    assert (load.parent_id, queue.parent_id) == (queue.context.span_id, run.parent_id)
    ((begin,), (end,)) = kept.named("input"), kept.named("output")
    assert begin.start_ns - run.start_ns == run.end_ns - end.end_ns
    request = kept.spans[-1]
    assert (request.context.trace_id, request.parent_id, run.parent_id) == (TRACE, PARENT, request.context.span_id)
    phases = {name: request.attributes[f"trims.load_phase_seconds.{name.removesuffix('_s')}"] for name in PHASES}
    assert (phases, request.attributes["trims.load_seconds"]) == (PHASES, pytest.approx(sum(PHASES.values())))
    assert {name: value for name, value in request.attributes.items() if "load" not in name and "." in name} == {
        "rpc.system": "grpc", "rpc.service": "inference.GRPCInferenceService", "rpc.method": "ModelInfer",
        "server.address": "", "server.port": 0, "trims.model.name": "m", "rpc.grpc.status_code": 0,
        "faas.coldstart": True, "trims.model.version": "1.0.0", "trims.predictor": "forked", "trims.place": "cpu",
        "trims.resident": True, "trims.batch_size": 2,
    }  # fmt: skip


def test_a_start_that_is_longer_than_the_queue_begins_with_it() -> None:
    kept = answered({**COLD, "process_s": 1e9}, cold=True)
    ((queue,), (process,)) = kept.named("queue"), kept.named("process")
    assert process.start_ns == queue.start_ns == 0


def test_a_run_that_begins_once_more_is_another_span() -> None:
    given: list[Any] = []

    def fail(span: RequestSpan) -> None:
        given.extend(span.begin_run(time.perf_counter(), 1) for _ in range(2))
        raise PredictorError("it: fails")

    kept = Kept()
    with pytest.raises(PredictorError):
        ask(kept, fail)
    assert [own for own, *_ in given] == [None, None], "no process records its part: nothing goes to files"
    assert [headers for _, headers, _ in given] == [
        {"traceparent": f"00-{TRACE}-{run.context.span_id}-01", "tracestate": "mine=1"} for run in kept.named("run")
    ]
    failures = [(each.name, each.attributes.get(FAILURE)) for each in kept.spans]
    request, text = kept.spans[-1], "PredictorError: it: fails"
    assert failures == [("run", None), ("run", text), ("queue", None), (request.name, text)]
    exception = [request.attributes[f"exception.{name}"] for name in ("type", "message")]
    assert exception == ["PredictorError", "it: fails"]


def test_a_run_that_fails_ends_with_the_error_and_one_that_begins_too_late_is_none() -> None:
    late: list[Any] = []

    def work(span: RequestSpan) -> None:
        *_, fail = span.begin_run(0.0, 4)
        fail(CallerError("m: another is to blame"))
        (run,) = kept.named("run")
        ended_ns, found = run.end_ns, dict(run.attributes)
        assert found == {"batch_size": 4, "error.type": "bad_request", FAILURE: "CallerError: m: another is to blame"}
        span.begin_run(0.0, 1)
        fail(PredictorError("m: once more"))
        assert (run.end_ns, run.attributes) == (ended_ns, found)
        span.answered(DEPLOYMENT, Answer([], False, "running", "cpu", True, 1, WARM))
        late.append(span)

    ask(kept := Kept(), work)
    assert [each.attributes.get("error.type") for each in kept.named("run")] == ["bad_request", None]
    assert "error.type" not in kept.spans[-1].attributes, "the request was answered"
    count = len(kept.spans)
    own, headers, fail = late[0].begin_run(0.0, 1)
    fail(PredictorError("m: it fails"))
    assert (own, headers, len(kept.spans)) == (None, None, count)


HUNG_UP = {"http.response.status_code": 499, "error.type": "CancelledError", "exception.type": "ClientDisconnect"}
TEXT = {"text_input": "hi"}


@pytest.mark.parametrize(
    ("path", "body", "sent_before"),
    [
        ("/v2/models/m/generate", TEXT, 0),
        ("/v2/models/m/generate_stream", TEXT, 1 + len(PARTS)),
        ("/v1/completions", {"model": "m", "prompt": "hi"}, 0),
        ("/v1/completions", {"model": "m", "prompt": "hi", "stream": True}, 1 + len(PARTS)),
    ],
)
def test_a_client_that_hangs_up_marks_its_request_streamed_or_not(path: str, body: Any, sent_before: int) -> None:
    service: Any = Generator()
    service.hangs, service.exporter = True, Kept()
    app, sent = build_app(service, most_body_bytes=1 << 16, token=None, loopback=True), []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        async def note(message: Any) -> None:
            sent.append(message)
            await send(message)

        await app(scope, receive, note)

    async def work() -> None:
        gone = asyncio.Event()
        asking = asyncio.ensure_future(call(noting, "POST", path, body, gone))
        await until(lambda: service.asked and len(sent) == sent_before)
        gone.set()
        await asyncio.wait_for(asking, 60)

    asyncio.run(work())
    (request,) = service.exporter.spans
    assert {name: request.attributes.get(name) for name in HUNG_UP} == HUNG_UP
    assert service.counted("cancelled") == 1


def test_a_stream_that_fails_after_its_first_part_is_a_failure_whose_status_was_sent() -> None:
    def fail(span: RequestSpan) -> None:
        span.begin_run(0.0, 1)[2](PredictorError("m: it died"))

    ask(kept := Kept(), fail)
    request = kept.spans[-1]
    assert (request.attributes["rpc.grpc.status_code"], request.attributes["error.type"]) == (0, "predictor")
    assert request.attributes[FAILURE] == "PredictorError: m: it died"


@pytest.mark.parametrize(
    ("state", "level", "names"),
    [
        ("trims=application", Level.MODEL, set()),
        ("trims=1", Level.APPLICATION, set()),
        ("trims=1", Level.MODEL, {"queue", "run"}),
        ("trims=framework", Level.APPLICATION, {"queue", "run"}),
    ],
)
@pytest.mark.parametrize("kept", [None, Kept])
def test_files_have_the_levels_that_are_asked_for_and_a_collector_has_all(
    tmp_path: Path, state: str, level: Level, names: set[str], kept: Any
) -> None:
    spans.configure(tmp_path, "endpoint", level=level)
    exporter = None if kept is None else kept()

    def answer(span: RequestSpan) -> None:
        own, *_ = span.begin_run(0.0, 1)
        assert (own is not None) == bool(names), "processes record their parts of a run that is recorded"
        span.answered(DEPLOYMENT, Answer([], False, "running", "cpu", True, 1, WARM))

    try:
        ask(exporter, answer, (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", state)))
    finally:
        spans.stop()
    (trace,) = read_traces(tmp_path)
    request = "inference.GRPCInferenceService/ModelInfer"
    assert {each.name for each in trace.spans} == {request, *names}
    if exporter is not None:
        assert {each.name for each in exporter.spans} == {request, "queue", "run", "input", "predict", "output"}


@pytest.mark.parametrize(("flags", "given"), [("00", "00"), ("01", "01"), ("02", "02"), ("03", "03")])
def test_the_predictor_s_code_is_given_the_caller_s_state_and_flags(
    monkeypatch: pytest.MonkeyPatch, flags: str, given: str
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="no SDK: pip install 'trims[otel]'")
    from trims.trace.export.otlp import Exporter

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    found: list[Any] = []
    exporter: Any = Exporter("endpoint")
    monkeypatch.setattr(exporter, "offer", lambda span, state: None)
    caller = (("traceparent", f"00-{TRACE}-{PARENT}-{flags}"), ("tracestate", "trims=1,foo=bar"))
    try:
        ask(exporter, lambda span: found.append(span.begin_run(0.0, 1)[1]), caller)
    finally:
        exporter.close()
        logger = logging.getLogger("opentelemetry")
        logger.handlers, logger.propagate = [], True
    (headers,) = found
    assert (headers["traceparent"][:36], headers["traceparent"][-3:]) == (f"00-{TRACE}-", f"-{given}")
    assert headers["tracestate"] == "trims=1,foo=bar"
