"""Sentences about what profiles lack."""

from __future__ import annotations

from recorded import span, trace

from trims.trace.profiles import shortcomings


def test_each_shortcoming_of_a_profile_is_one_sentence() -> None:
    found = trace(
        span("start profiler", 0, 1, error="it did not start"),
        span("read profile", 2, 3, not_deeper="no GPU", cut=7, unread=2),
        span("read profile", 4, 5, not_deeper="no GPU"),
    )
    assert shortcomings(found) == [
        "it did not start", "no GPU", "7 spans of the profile were left out: they are too many",
        "2 entries of the profile could not be read",
    ]  # fmt: skip


def test_spans_of_models_say_nothing_of_profiles() -> None:
    assert shortcomings(trace(span("predict", 0, 1, error="of the model"), span("read profile", 2, 3))) == []
