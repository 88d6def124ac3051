"""Tracing: what asks for it, and what HTTP and gRPC report of a request; tests/e2e/test_traces.py has whole traces."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from trims_predictors.endpoint.grpc.service import code_of
from trims_predictors.endpoint.observe.tracing import (
    carrier_of,
    grpc_span,
    http_span,
    is_wanted,
    make_tracing,
)

from trims.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    monkeypatch.delitem(sys.modules, "trims_predictors.endpoint.observe.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(
        ConfigError, match=r"opentelemetry\..* is missing: pip install 'trims\[otel\]', or set OTEL_SDK_"
    ):
        make_tracing(URL)


def test_a_value_that_the_sdk_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="no SDK: pip install 'trims[otel]'")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")  # less than what is sent at once
    with pytest.raises(ConfigError, match=r"OpenTelemetry's variables \(OTEL_\*\) cannot be used: ValueError: max_"):
        make_tracing(URL)


def test_without_the_variables_neither_sdk_nor_exporter_is_imported() -> None:
    code = (
        "import sys, trims_predictors.endpoint.main as main\nassert main.make_tracing({}) is None\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_tracing_a_request_has_no_span_and_is_not_looked_at() -> None:
    nothing: Any = None
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
