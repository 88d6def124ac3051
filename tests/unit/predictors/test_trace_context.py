"""The trace context of a run, as the code of a predictor finds it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from trims_predictors.trace_context import handed_on

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "mine=1"}


def variables() -> tuple[str | None, str | None]:
    return os.environ.get("TRACEPARENT"), os.environ.get("TRACESTATE")


def test_the_context_is_in_the_environment_for_as_long_as_the_run_lasts() -> None:
    with handed_on(CONTEXT):
        assert variables() == (CONTEXT["traceparent"], "mine=1")
    assert variables() == (None, None)


def test_a_run_that_fails_leaves_no_context() -> None:
    block = handed_on({"traceparent": CONTEXT["traceparent"]})
    block.__enter__()
    assert variables() == (CONTEXT["traceparent"], None)
    assert not block.__exit__(ZeroDivisionError, ZeroDivisionError(), None), "the error is raised on"
    assert variables() == (None, None)


def test_a_run_without_a_context_leaves_everything_as_it_is() -> None:
    with handed_on(None):
        assert variables() == (None, None)


def test_the_context_is_the_current_one_where_opentelemetry_is_imported() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    with handed_on(CONTEXT):
        found = trace.get_current_span().get_span_context()
        assert (f"{found.trace_id:032x}", f"{found.span_id:016x}", found.is_remote) == (TRACE, PARENT, True)
    assert not trace.get_current_span().get_span_context().is_valid
    with handed_on({"traceparent": "nonsense"}):
        assert not trace.get_current_span().get_span_context().is_valid


def test_handing_a_context_on_imports_nothing_of_opentelemetry() -> None:
    code = (
        "import sys\nfrom trims_predictors.trace_context import handed_on\n"
        f"with handed_on({CONTEXT!r}): print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
