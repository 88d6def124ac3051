"""Requests as spans: into files for those that ask for it, and to a collector if OpenTelemetry's variables are set.

A request is a server span, a child of the client's. Its children are `queue` and `run`. A collector gets the stages of
both, with the lengths that `Answer.stages` has: those of a start end with the queue, and those of a run lie in its
middle. In files the processes that did these stages record them. Without files and collector a request costs one check.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import ConfigError
from trims.process.packages import install_words
from trims.trace.context import SAMPLED, SpanContext, parse_context
from trims.trace.levels import Level
from trims.trace.span import FAILURE, Span
from trims.trace.spans import Within, asked_by, deepest, is_everything, is_on, recorder
from trims_predictors.endpoint.observe.outcomes import Outcome, grpc_outcome, http_outcome
from trims_predictors.trace_context import TRACEPARENT, TRACESTATE
from trims_predictors.tracebacks import format_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import grpc
    from fastapi import Request
    from typing_extensions import Self

    from trims.core.errors import TrimsError
    from trims.trace.export.otlp import Exporter
    from trims.trace.span import SpanSink
    from trims_predictors.deployment.deployment import Answer, Deployment
    from trims_predictors.pool.dispatch import BegunRun

    Headers = Iterable[tuple[str, str | bytes]]
    Spanned = AbstractContextManager["RequestSpan | None"]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_SERVICE = "inference.GRPCInferenceService"
_NOTHING: AbstractContextManager[None] = nullcontext()
#: Stages of `Answer.stages`, in their order.
_START = ("process", "connect", "open", "import", "load")
_RUN = ("input", "preprocess", "predict", "postprocess", "output")


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's variables ask for traces. Raises ConfigError if what they ask is not offered."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    asked = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    if asked == "none" or not (asked or any(environment.get(each) for each in _ENDPOINTS)):
        return False
    if asked not in ("", "otlp"):
        raise ConfigError(f"OTEL_TRACES_EXPORTER is {asked!r:.80}; the endpoint exports by otlp, or none")
    protocol = next(filter(None, (environment.get(each, "").strip() for each in _PROTOCOLS)), _PROTOCOL)
    if protocol != _PROTOCOL:
        raise ConfigError(f"the OTLP protocol {protocol!r:.80} is not offered; set {_PROTOCOLS[1]}={_PROTOCOL}")
    return True


def make_exporter(environment: Mapping[str, str]) -> Exporter | None:
    """Return what sends requests' spans to a collector; None if no traces are wanted.

    Raises ConfigError if packages are missing, or if a variable has a value that the SDK refuses.
    """
    if not is_wanted(environment):
        return None
    try:
        from trims.trace.export.otlp import Exporter

        return Exporter("endpoint")
    except ImportError as error:
        raise ConfigError(
            f"OpenTelemetry's variables ask for traces, and {error.name} is missing: "
            f"{install_words('trims[otel]')}, or set OTEL_SDK_DISABLED=true"
        ) from error
    except Exception as error:
        raise ConfigError(f"OpenTelemetry's variables (OTEL_*) cannot be used: {format_error(error)}") from error


def carrier_of(headers: Headers) -> dict[str, str]:
    """Return the client's context in headers; empty unless they have exactly one, as W3C says."""
    found: dict[str, list[str]] = {TRACEPARENT: [], TRACESTATE: []}
    for name, value in headers:
        if name in found and isinstance(value, str):
            found[name].append(value)
    if len(found[TRACEPARENT]) != 1:
        return {}
    return {TRACEPARENT: found[TRACEPARENT][0], TRACESTATE: ",".join(found[TRACESTATE])}


class _Sinks(NamedTuple):
    """Where the spans of one request go: into files, and with its `tracestate` to a collector.

    Attributes:
        deepest: The deepest level that goes to files; a collector gets all.
        flags: Flags of W3C's `traceparent` for the predictor's code; empty if that is given none.
    """

    files: SpanSink | None
    deepest: int
    exporter: Exporter | None = None
    state: str = ""
    flags: str = ""

    def began(self, span: Span) -> None:
        """See `SpanSink`."""
        if self.files is not None and span.level <= self.deepest:
            self.files.began(span)

    def ended(self, span: Span) -> None:
        """See `SpanSink`."""
        if self.files is not None and span.level <= self.deepest:
            self.files.ended(span)
        if self.exporter is not None:
            self.exporter.offer(span, self.state)


class RequestSpan:
    """The server span of one request and those below it, for a block.

    Args:
        outcome: Returns what an error, or None, means in the request's protocol.
    """

    def __init__(
        self,
        name: str,
        begun: tuple[_Sinks, SpanContext | None],
        attributes: Mapping[str, Any],
        outcome: Callable[[BaseException | None], Outcome],
    ) -> None:
        self._sinks, parent = begun
        known = {key: value for key, value in attributes.items() if value is not None}
        self._span = Span(self._sinks, name, Level.APPLICATION, parent, known)
        self._within = _NOTHING if self._sinks.files is None else Within(self._span.context)
        self._outcome = outcome
        self._run: Span | None = None
        self._failure: BaseException | None = None
        self._came_ns = 0
        self._status: int | None = None
        self._answered: tuple[Deployment, Answer] | None = None

    def __enter__(self) -> Self:
        self._within.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._within.__exit__(None, None, None)
        # The spans below it are made once the answer was sent, which they would delay.
        asyncio.get_running_loop().call_soon(self._end, error, time.monotonic_ns())

    def begin_run(self, came_s: float, batch: int) -> BegunRun:
        """Note that a predictor begins to answer it, perhaps once more, with so many requests together.

        Returns its context, if processes record their parts of the run, what the predictor's code finds of it, and what
        ends the run's span with an error.
        """
        if self._span.end_ns:  # its client has left, and nothing would end the span of a run
            return None, None, partial(self._fail_run, self._span)
        if self._run is not None:
            self._run.end()
        self._came_ns, sinks = int(came_s * 1e9), self._sinks
        run = self._run = Span(sinks, "run", Level.MODEL, self._span.context, {"batch_size": batch})
        own = None if sinks.files is None or run.level > sinks.deepest else run.context
        named = {TRACEPARENT: f"00-{run.context.trace_id}-{run.context.span_id}-{sinks.flags}"}
        headers = {**named, **({TRACESTATE: sinks.state} if sinks.state else {})} if sinks.flags else None
        return own, headers, partial(self._fail_run, run)

    def _fail_run(self, run: Span, error: BaseException, at_ns: int = 0) -> None:
        """End the span of a run with an error, unless it has ended."""
        if not run.end_ns:
            self._failure = error
            run.set(**{"error.type": self._outcome(error).attributes["error.type"], FAILURE: format_error(error)})
            run.end(at_ns=at_ns)

    def answered(self, deployment: Deployment, answer: Answer) -> None:
        """Keep the answer of the request; the span reports it when it ends."""
        self._answered = deployment, answer

    def set_status(self, status: int) -> None:
        """Keep the status of the HTTP response, for a request whose error does not state it."""
        self._status = status

    def _end(self, error: BaseException | None, end_ns: int) -> None:
        """End it, with all spans below it."""
        # A stream that fails ends without an error: its last event has it, and its status was sent before.
        failure = self._failure if error is None and self._answered is None else error
        span, outcome = self._span, self._outcome(failure)
        span.set(**{**outcome.attributes, **self._outcome(error).attributes})
        if self._status is not None:
            span.set(**{"http.response.status_code": self._status})
        if failure is not None:
            text = format_error(failure)
            span.set(**{"exception.type": type(failure).__name__, "exception.message": text.partition(": ")[2]})
            if outcome.failed:
                span.set(**{FAILURE: text})
            if self._run is not None and self._answered is None:
                self._fail_run(self._run, failure, end_ns)
        if self._run is not None:
            self._end_run(self._run, end_ns)
        span.end(at_ns=end_ns)
        self._failure = None  # frames of its traceback hold this span: that would be a cycle

    def _end_run(self, run: Span, end_ns: int) -> None:
        """Record queue, run and, for a collector, their stages."""
        times_ns = self._came_ns, run.start_ns
        queue = Span.measured(
            self._sinks, "queue", Level.MODEL, self._span.context, times_ns=times_ns, thread=run.thread
        )
        if self._answered is None:
            run.end(at_ns=end_ns)
            return
        self._describe(*self._answered)
        stages = {name.removesuffix("_s"): round(length * 1e9) for name, length in self._answered[1].stages.items()}
        run.end(at_ns=run.start_ns + stages["run"])
        if self._sinks.exporter is not None:
            start_ns, run_ns = (sum(stages.get(name, 0) for name in names) for names in (_START, _RUN))
            self._export(queue, _START, stages, max(self._came_ns, run.start_ns - start_ns))
            self._export(run.context, _RUN, stages, run.start_ns + max(0, stages["run"] - run_ns) // 2)

    def _export(self, parent: SpanContext, names: Sequence[str], stages: Mapping[str, int], begin_ns: int) -> None:
        """Export a span for each stage that there was, one after the other."""
        sink = self._sinks._replace(files=None)
        for name in names:
            if name in stages:
                end_ns = begin_ns + stages[name]
                Span.measured(sink, name, Level.MODEL, parent, times_ns=(begin_ns, end_ns), thread=self._span.thread)
                begin_ns = end_ns

    def _describe(self, deployment: Deployment, answer: Answer) -> None:
        """Say whether it was cold, where the weights lie, and how long a start took."""
        self._span.set(
            **{
                "faas.coldstart": answer.cold, "trims.model.version": deployment.version, "trims.predictor": answer.how,
                "trims.place": answer.place, "trims.resident": answer.warm, "trims.batch_size": answer.batch,
            }
        )  # fmt: skip
        if answer.cold:
            names = [name for name in (*_START, "unattributed") if f"{name}_s" in answer.stages]
            phases = {f"trims.load_phase_seconds.{name}": answer.stages[f"{name}_s"] for name in names}
            self._span.set(**phases, **{"trims.load_seconds": sum(phases.values())})


def _begin(exporter: Exporter | None, headers: Headers) -> tuple[_Sinks, SpanContext | None] | None:
    """Return where the spans of a request go, and what it is a part of; None if they go nowhere.

    They go to files if all requests are recorded, or if the caller writes `trims=1` into `tracestate`, or the name of
    the level down to which the request is recorded: `trims=framework`.
    """
    if exporter is None and not is_on():
        return None
    carrier = carrier_of(headers)
    is_asked, level = asked_by(carrier[TRACESTATE]) if carrier else (False, None)
    parent = parse_context(carrier[TRACEPARENT]) if is_asked else None
    files = recorder() if parent is not None or is_everything() else None
    level = None if parent is None else level
    sinks = _Sinks(files, int(deepest() if level is None else level))
    if exporter is not None:
        parent, state, flags = exporter.sample(carrier)
        sinks = sinks._replace(exporter=exporter if flags & SAMPLED else None, state=state, flags=f"{flags:02x}")
    elif files is None:
        return None
    return sinks, parent if parent is None or level is None else parent._replace(level=int(level))


def http_span(exporter: Exporter | None, request: Request, route: str, model: str) -> Spanned:
    """Return the span of an inference request over HTTP, for a block; its value is None if it is not recorded.

    Args:
        exporter: Sends spans to a collector; None for none.
        route: The path it came by, with names in place of what differs.
    """
    begun = _begin(exporter, request.headers.items())
    if begun is None:
        return _NOTHING
    scope = request.scope
    address, port = scope.get("server") or ("", None)
    attributes = {
        "http.request.method": request.method, "http.route": route, "url.path": scope["path"],
        "url.scheme": scope["scheme"], "network.protocol.version": scope["http_version"], "server.address": address,
        "server.port": port, "client.address": (scope.get("client") or ("",))[0],
        "user_agent.original": request.headers.get("user-agent"), "trims.model.name": model,
    }  # fmt: skip
    return RequestSpan(f"{request.method} {route}", begun, attributes, http_outcome)


def grpc_span(
    exporter: Exporter | None,
    context: grpc.aio.ServicerContext[Any, Any],
    method: str,
    *,
    model: str,
    server: tuple[str, int],
    code_of: Callable[[TrimsError], grpc.StatusCode],
) -> Spanned:
    """Return the span of an inference request over gRPC, for a block; its value is None if it is not recorded."""
    begun = _begin(exporter, context.invocation_metadata() or ())
    if begun is None:
        return _NOTHING
    attributes = {
        "rpc.system": "grpc", "rpc.service": _SERVICE, "rpc.method": method, "server.address": server[0],
        "server.port": server[1], "trims.model.name": model,
    }  # fmt: skip
    return RequestSpan(f"{_SERVICE}/{method}", begun, attributes, partial(grpc_outcome, code_of=code_of))
