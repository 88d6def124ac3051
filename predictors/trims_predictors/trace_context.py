"""The trace that a run belongs to, for the code of a predictor: W3C's `traceparent` and `tracestate`.

Both are environment variables of the process while a run lasts (`TRACEPARENT`, `TRACESTATE`). If the predictor's code
has imported OpenTelemetry, the context is also the current one there, so that its spans become children of the run.
Nothing of OpenTelemetry is imported here: a template must not have it for this.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"


@contextmanager
def handed_on(context: Mapping[str, str] | None) -> Iterator[None]:
    """Have the context be that of the process within the block; None for a run without one."""
    if context is None:
        yield
        return
    names = {name: name.upper() for name in (TRACEPARENT, TRACESTATE) if name in context}
    os.environ.update({variable: context[name] for name, variable in names.items()})
    try:
        with _current(context):
            yield
    finally:
        for variable in names.values():
            os.environ.pop(variable, None)


@contextmanager
def _current(context: Mapping[str, str]) -> Iterator[None]:
    if "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry.context import Context, attach, detach
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = attach(TraceContextTextMapPropagator().extract(context, Context()))
    try:
        yield
    finally:
        detach(token)
