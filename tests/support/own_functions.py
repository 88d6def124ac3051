"""Functions that tests name in manifests as `own_functions:name`: predictors and steps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from trims.core.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Mapping

NUMBER = 3


def scale(weights: Mapping[str, Any], inputs: Mapping[str, Any], bias: float = 0.0) -> dict[str, Any]:
    """Answer as a model of one weight."""
    return {"y": inputs["x"] * weights["factor"] + bias}


def mean_colour(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return each image's mean of each channel, times the weight: a classifier of red, green and blue."""
    return {"logits": inputs["data"].mean(axis=(2, 3)) * weights["factor"]}


def answer_nothing(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """No mapping."""


def add(context: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Adds what the step's options say."""
    return {**data, "x": data["x"] + context.options["number"]}


def refuse(context: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Takes no request."""
    raise CallerError(f"{context.model} takes none of these")


def fail(context: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Has a defect."""
    raise ZeroDivisionError("by hand")


def tell_context(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The trace context that its process has, one for each row."""
    known = {name: os.environ.get(name, "").encode() for name in ("TRACEPARENT", "TRACESTATE")}
    return {name.lower(): np.array([value] * len(inputs["x"]), dtype=object) for name, value in known.items()}


def make_span(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a span of its own, as a user's function does that has the SDK of OpenTelemetry."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    with provider.get_tracer("mine").start_as_current_span("mine"):
        found = scale(weights, inputs)
    provider.shutdown()
    return found


def fail_at_once(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """Has a defect."""
    raise ZeroDivisionError("by hand")
