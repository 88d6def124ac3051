"""What is reported of an exception of other people's code."""

from __future__ import annotations

import json
from typing import Any

import pytest
from own_handlers import fail

from trims.core.functions import Raised, raised, raised_of


def caught(code: Any, *given: Any) -> Raised:
    with pytest.raises(BaseException) as error:
        code(*given)
    return raised(error.value)


def test_the_place_is_the_last_line_of_the_users_own_code() -> None:
    found = caught(lambda: fail(None, None))
    assert (found.type, found.message, found.file_name, found.function) == (
        "ZeroDivisionError", "by hand", "own_handlers.py", "_helper",
    )  # fmt: skip
    below = caught(lambda: json.loads("{"))
    assert (below.type, below.file_name) == ("JSONDecodeError", "test_functions.py"), "the standard library is left out"
    assert str(found) == f"ZeroDivisionError: by hand (own_handlers.py:{found.line} in _helper)"
    assert found.facts() == {**found._asdict(), "file": "own_handlers.py"}


def test_a_syntax_error_is_where_the_text_is_wrong() -> None:
    found = caught(lambda: compile("1\ndef f(", "/folder/mine.py", "exec"))
    assert (found.type, found.place) == ("SyntaxError", "mine.py:2 in <module>")


class Broken(Exception):  # noqa: N818 - as a user may call it
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_without_a_text_or_without_a_trace_is_named() -> None:
    assert raised(Broken()) == Raised("Broken", "")
    assert str(raised(KeyboardInterrupt())) == "KeyboardInterrupt"
    assert len(raised(ValueError("x" * 10_000)).message) < 3000


@pytest.mark.parametrize("facts", [None, "x", [1, "m", "f", 1, "g"], ["T", "m", "f", True, "g"], ["T", "m", "f", 1]])
def test_what_is_no_report_of_another_process_is_none(facts: object) -> None:
    assert raised_of(facts) is None


def test_a_report_comes_back_as_it_was_with_whole_characters() -> None:
    assert raised_of(list(Raised("T", "m", "f", 1, "g"))) == Raised("T", "m", "f", 1, "g")
    assert raised_of(["T", "\ud800", "f", 1, "g"]) == Raised("T", "?", "f", 1, "g")
