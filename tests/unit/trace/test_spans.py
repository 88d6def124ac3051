"""Spans: what is kept of a block, and that nothing is where tracing is off."""

from __future__ import annotations

import pytest

from trims.trace.spans import Tracer


def test_a_span_has_its_length_its_attributes_and_its_order() -> None:
    tracer = Tracer()
    with tracer.span("outer", model="m") as outer:
        with tracer.span("inner"):
            pass
        assert outer is not None
        outer.attributes["image_bytes"] = 7
    assert [span.name for span in tracer.spans] == ["inner", "outer"]
    inner, kept = tracer.spans
    assert kept.attributes == {"model": "m", "image_bytes": 7}
    assert 0 <= inner.duration_s <= kept.duration_s


def test_a_block_that_raises_leaves_a_span_that_says_so() -> None:
    tracer = Tracer()
    with pytest.raises(ZeroDivisionError), tracer.span("fails"):
        1 / 0  # noqa: B018
    assert tracer.spans[0].attributes == {"error": "ZeroDivisionError"}


def test_off_nothing_is_kept_and_the_block_runs() -> None:
    tracer, ran = Tracer(enabled=False), []
    with tracer.span("off") as span:
        ran.append(span)
    assert (ran, len(tracer.spans)) == ([None], 0)
