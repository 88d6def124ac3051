"""One line of `trims doctor`, as JSON."""

from __future__ import annotations

from trims.cli.finding import Finding


def test_a_finding_without_advice_has_the_same_fields_as_one_with_it() -> None:
    assert Finding("ok", "Python 3").as_json() == {"verdict": "ok", "what": "Python 3", "advice": ""}
    assert Finding("bad", "w", "a").as_json() == {"verdict": "bad", "what": "w", "advice": "a"}


LONG = Finding(
    "note", "no daemon answers at /a/long/path/to/a/control.sock; start one with `trims serve`", "trims serve"
)


def test_a_line_for_people_is_as_wide_as_the_terminal_and_breaks_no_path() -> None:
    assert LONG.lines(60) == [
        "note  no daemon answers at /a/long/path/to/a/control.sock;",
        "      start one with `trims serve`",
        "      -> trims serve",
    ]
    assert all(len(line) <= 80 for line in LONG.lines(80))


def test_a_path_that_is_wider_than_the_terminal_stays_whole() -> None:
    assert any("/a/long/path/to/a/control.sock;" in line for line in LONG.lines(10))


def test_a_line_that_goes_to_a_file_is_one_line() -> None:
    assert LONG.lines(None) == [f"note  {LONG.what}", "      -> trims serve"]
