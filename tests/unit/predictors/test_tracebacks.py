"""Errors in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from trims_predictors.frameworks.resolve import from_file
from trims_predictors.tracebacks import format_error, traceback_of

if TYPE_CHECKING:
    from pathlib import Path


class MuteError(Exception):
    """Cannot say what is wrong."""

    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_error_is_told_with_its_class_even_if_it_has_no_words() -> None:
    assert format_error(KeyError("x")) == "KeyError: 'x'"
    assert format_error(MuteError()) == "MuteError, whose message cannot be made"


def test_of_a_very_long_error_only_the_beginning_is_told() -> None:
    try:
        raise RuntimeError("E" * 1_000_000)
    except RuntimeError as raised:
        error = raised
    assert format_error(error).startswith("RuntimeError: EEE")
    assert format_error(error).endswith("E... (992000 more characters are left out)\n")
    assert len(traceback_of(error)) < 10_000
    assert "RuntimeError: EEE" in traceback_of(error)


def test_a_traceback_begins_where_the_user_s_code_does(folder: Path) -> None:
    (folder / "traced.py").write_text("def inner():\n    raise KeyError('x')\ninner()\n")
    with pytest.raises(KeyError) as raised:
        from_file(f"{folder}/traced.py:name")
    assert raised.value.__traceback__ is not None
    error = raised.value.with_traceback(raised.value.__traceback__.tb_next)  # without the frame of this test
    frames = [line.split(", in ")[1] for line in traceback_of(error).splitlines() if line.startswith("  File")]
    assert frames == ["<module>", "inner"]
