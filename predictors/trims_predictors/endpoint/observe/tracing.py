"""Requests as spans of OpenTelemetry, if its environment variables ask for it; else each request costs one check.

Nothing of OpenTelemetry is imported here. `otlp` has the spans and their export; here is what asks for them, and what
HTTP and gRPC report of a request in the words of the semantic conventions.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from trims.core.errors import ConfigError
from trims.trace.context import parse_context
from trims.trace.levels import Level
from trims.trace.spans import asked_by, is_on, span
from trims_predictors.endpoint.observe.outcomes import Outcome, grpc_outcome, http_outcome
from trims_predictors.trace_context import TRACEPARENT, TRACESTATE
from trims_predictors.tracebacks import told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    import grpc
    from fastapi import Request

    from trims.core.errors import TrimsError
    from trims_predictors.endpoint.observe.otlp import RequestSpan, Tracing

    Spanned = AbstractContextManager["RequestSpan | None"]

from trims.process.packages import install_words

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_SERVICE = "inference.GRPCInferenceService"
_NOTHING: AbstractContextManager[None] = nullcontext()


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


def make_tracing(environment: Mapping[str, str]) -> Tracing | None:
    """Return the maker of requests' spans; None if no traces are wanted.

    Raises ConfigError if packages are missing, or if a variable has a value that the SDK refuses.
    """
    if not is_wanted(environment):
        return None
    try:
        from trims_predictors.endpoint.observe.otlp import Tracing
    except ImportError as error:
        raise ConfigError(
            f"OpenTelemetry's variables ask for traces, and {error.name} is missing: "
            f"{install_words('trims[otel]')}, or set OTEL_SDK_DISABLED=true"
        ) from error
    try:
        return Tracing()
    except Exception as error:
        raise ConfigError(f"OpenTelemetry's variables (OTEL_*) cannot be used: {told(error)}") from error


def carrier_of(headers: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """The client's context in headers; empty unless they have exactly one, as W3C says."""
    found: dict[str, list[str]] = {TRACEPARENT: [], TRACESTATE: []}
    for name, value in headers:
        if name in found and isinstance(value, str):
            found[name].append(value)
    if len(found[TRACEPARENT]) != 1:
        return {}
    return {TRACEPARENT: found[TRACEPARENT][0], TRACESTATE: ",".join(found[TRACESTATE])}


def recorded(headers: Iterable[tuple[str, str | bytes]], name: str, model: str) -> AbstractContextManager[object]:
    """Record a request as a span, if its caller asks for that by `tracestate`, or if all are recorded.

    The caller writes `trims=1`, or the name of the level down to which the request is recorded: `trims=framework`.

    Args:
        headers: Headers of the request, or its metadata.
    """
    if not is_on():
        return _NOTHING
    asked = carrier_of(headers)
    is_asked, level = asked_by(asked[TRACESTATE]) if asked else (False, None)
    context = parse_context(asked[TRACEPARENT]) if is_asked else None
    if context is not None and level is not None:
        context = context._replace(level=int(level))
    return span(name, Level.APPLICATION, context, **{"trims.model.name": model})


def http_span(tracing: Tracing | None, request: Request, route: str, model: str) -> Spanned:
    """The span of an inference request over HTTP, for a block; None if there is no tracing.

    Args:
        route: The path it came by, with names in place of what differs.
    """
    if tracing is None:
        return _NOTHING
    scope = request.scope
    address, port = scope.get("server") or ("", None)
    attributes = {
        "http.request.method": request.method, "http.route": route, "url.path": scope["path"],
        "url.scheme": scope["scheme"], "network.protocol.version": scope["http_version"], "server.address": address,
        "server.port": port, "client.address": (scope.get("client") or ("",))[0],
        "user_agent.original": request.headers.get("user-agent"), "trims.model.name": model,
    }  # fmt: skip
    return tracing.request(f"{request.method} {route}", carrier_of(request.headers.items()), attributes, http_outcome)


def grpc_span(
    tracing: Tracing | None,
    context: grpc.aio.ServicerContext[Any, Any],
    method: str,
    *,
    model: str,
    server: tuple[str, int],
    code_of: Callable[[TrimsError], grpc.StatusCode],
) -> Spanned:
    """The span of an inference request over gRPC, for a block; None if there is no tracing."""
    if tracing is None:
        return _NOTHING
    attributes = {
        "rpc.system": "grpc", "rpc.service": _SERVICE, "rpc.method": method, "server.address": server[0],
        "server.port": server[1], "trims.model.name": model,
    }  # fmt: skip

    def outcome(error: BaseException | None) -> Outcome:
        return grpc_outcome(error, code_of)

    return tracing.request(f"{_SERVICE}/{method}", carrier_of(context.invocation_metadata() or ()), attributes, outcome)
