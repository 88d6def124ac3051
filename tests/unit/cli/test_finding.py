"""One line of `trims doctor`, as JSON."""

from __future__ import annotations

from trims.cli.finding import Finding


def test_a_finding_without_advice_has_the_same_fields_as_one_with_it() -> None:
    assert Finding("ok", "Python 3").as_json() == {"verdict": "ok", "what": "Python 3", "advice": ""}
    assert Finding("bad", "w", "a").as_json() == {"verdict": "bad", "what": "w", "advice": "a"}
