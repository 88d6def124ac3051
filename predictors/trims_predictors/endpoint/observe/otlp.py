"""Spans of requests and their export by OTLP over HTTP. Imported only if traces are asked for (`tracing`).

A request is a server span, a child of the client's. Its children are `queue` and `run`; theirs are the stages, with the
lengths that `Answer.stages` has. The stages of a start end with the queue, and those of a run lie in its middle: their
lengths are measured, and their places are reckoned.

Spans go to a queue of the SDK, and a thread of its own sends them. Requests never wait for it: spans that the queue has
no room for are dropped.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import trims
from trims_predictors.tracebacks import told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trims_predictors.deployment.deployment import Answer, Deployment
    from trims_predictors.endpoint.observe.outcomes import Outcome

_W3C = TraceContextTextMapPropagator()
_NAME = "trims-endpoint"
#: Stages of `Answer.stages`, in their order.
_START = ("process", "connect", "open", "import", "load")
_RUN = ("input", "preprocess", "predict", "postprocess", "output")
#: Seconds to send what is left when the endpoint ends.
_FLUSH_S = 5.0
#: Seconds between two log lines about a collector that cannot be reached.
_QUIET_S = 60.0
_log = logging.getLogger(__name__)


class Tracing:
    """Makes spans of requests, and sends them where OpenTelemetry's environment variables say."""

    def __init__(self) -> None:
        resource = Resource.create({"service.version": trims.__version__})
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: _NAME}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._exporter = OTLPSpanExporter()
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer(_NAME, trims.__version__)
        self._complaints = Complaints()

    @contextmanager
    def request(
        self,
        name: str,
        carrier: Mapping[str, str],
        attributes: Mapping[str, Any],
        outcome: Callable[[BaseException | None], Outcome],
    ) -> Iterator[RequestSpan]:
        """A server span for the block.

        Args:
            carrier: The client's context, in W3C's headers.
            attributes: Attributes of the span; those that are None are left out.
            outcome: What an error, or None, means in the request's protocol.
        """
        context = _W3C.extract(carrier, Context())
        known = {key: value for key, value in attributes.items() if value is not None}
        span = self._tracer.start_span(name, context, SpanKind.SERVER, known)
        request, failed = RequestSpan(self._tracer, span), None
        try:
            yield request
        except BaseException as error:
            failed = error
            raise
        finally:
            # The spans below it are made once the answer was sent, which they would delay.
            asyncio.get_running_loop().call_soon(request.end, failed, outcome(failed), time.time_ns())
            del failed  # its traceback holds this frame: that would be a cycle

    async def close(self) -> None:
        """Send what is left, for at most some seconds; then it is lost."""
        # In a thread of its own, and no executor's: the end of the process would wait for that.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True, name="trims-otlp-end")
        closing.start()
        if self._complaints.are_recent():  # the collector is down: it is not tried again
            self._exporter.shutdown()
        until = time.monotonic() + _FLUSH_S
        while closing.is_alive() and time.monotonic() < until:
            await asyncio.sleep(0.01)
        if closing.is_alive():
            _log.warning("spans that were not sent within %g s are lost: the collector does not answer", _FLUSH_S)
        self._complaints.leave()


class RequestSpan:
    """The server span of one request, and those below it."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._run: Span | None = None
        self._run_began_ns = 0
        self._status: int | None = None
        self._answered: tuple[Deployment, Answer] | None = None

    def begin_run(self) -> Mapping[str, str]:
        """A predictor begins to answer it. Returns the run's context in W3C's headers. It may begin once more."""
        if self._run is not None:
            self._run.end()
        self._run_began_ns = time.time_ns()
        self._run = self._tracer.start_span("run", set_span_in_context(self._span), start_time=self._run_began_ns)
        headers: dict[str, str] = {}
        _W3C.inject(headers, set_span_in_context(self._run))
        return headers

    def answered(self, deployment: Deployment, answer: Answer) -> None:
        """Keep the answer of the request; the span reports it when it ends."""
        self._answered = deployment, answer

    def _tell(self, deployment: Deployment, answer: Answer) -> None:
        """Cold or warm, where the weights lie, and the stages."""
        if self._run is None or not self._span.is_recording():
            return
        self._span.set_attributes(
            {
                "faas.coldstart": answer.cold, "trims.model.version": deployment.version, "trims.predictor": answer.how,
                "trims.place": answer.place, "trims.resident": answer.warm, "trims.batch_size": answer.batch,
            }
        )  # fmt: skip
        if answer.cold:
            phases = {
                name: answer.stages[f"{name}_s"] for name in (*_START, "unattributed") if f"{name}_s" in answer.stages
            }
            self._span.set_attribute("trims.load_seconds", sum(phases.values()))
            for name, seconds in phases.items():
                self._span.set_attribute(f"trims.load_phase_seconds.{name}", seconds)
        stages = {name.removesuffix("_s"): round(seconds * 1e9) for name, seconds in answer.stages.items()}
        self._add_queue(stages)
        run, self._run = self._run, None
        spent = sum(stages.get(name, 0) for name in _RUN)
        self._add(run, _RUN, stages, self._run_began_ns + max(0, stages["run"] - spent) // 2)
        run.end(self._run_began_ns + stages["run"])

    def _add_queue(self, stages: Mapping[str, int]) -> None:
        began_ns = self._run_began_ns - stages["queue"]
        queue = self._tracer.start_span("queue", set_span_in_context(self._span), start_time=began_ns)
        spent = sum(stages.get(name, 0) for name in _START)
        self._add(queue, _START, stages, max(began_ns, self._run_began_ns - spent))
        queue.end(self._run_began_ns)

    def _add(self, parent: Span, names: Sequence[str], stages: Mapping[str, int], begin_ns: int) -> None:
        """Add a child for each stage that there was, one after the other."""
        context = set_span_in_context(parent)
        for name in names:
            if name in stages:
                self._tracer.start_span(name, context, start_time=begin_ns).end(begin_ns + stages[name])
                begin_ns += stages[name]

    def set_status(self, status: int) -> None:
        """Keep the status of the HTTP response, for a request whose error does not state it."""
        self._status = status

    def end(self, error: BaseException | None, outcome: Outcome, end_ns: int) -> None:
        """End it, with all spans below it.

        Args:
            error: What the request ended with; None for an answer.
            outcome: What that means in its protocol.
            end_ns: When that was, on the clock of `time.time_ns`.
        """
        if self._answered is not None:
            self._tell(*self._answered)
        for key, value in outcome.attributes.items():
            self._span.set_attribute(key, value)
        if self._status is not None:
            self._span.set_attribute("http.response.status_code", self._status)
        if error is not None:
            self._record(error, failed=outcome.failed)
        if self._run is not None:
            self._run.end(end_ns)
        self._span.end(end_ns)

    def _record(self, error: BaseException, *, failed: bool) -> None:
        text = told(error)
        for span in (self._span, self._run) if failed else ():
            if span is not None:
                span.set_status(Status(StatusCode.ERROR, text))
        self._span.add_event(
            "exception", {"exception.type": type(error).__name__, "exception.message": text.partition(": ")[2]}
        )


class Complaints(logging.Handler):
    """Handler that passes on the SDK's log as at most one line a minute: a collector that is down is one trouble."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._told_s: float | None = None
        self._logger = logging.getLogger("opentelemetry")
        self._propagated, self._logger.propagate = self._logger.propagate, False
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a line on, without its traceback."""
        now = self._clock()
        if self._told_s is None or now - self._told_s >= _QUIET_S:
            self._told_s = now
            _log.warning("traces: %s (told once a minute)", record.getMessage())

    def are_recent(self) -> bool:
        """Return whether there was one within the last minute."""
        return self._told_s is not None and self._clock() - self._told_s < _QUIET_S

    def leave(self) -> None:
        """Leave the SDK's logger as it was. Not `close`, which is called whenever logging is configured."""
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated
