"""Errors in words."""

from __future__ import annotations

from trims_predictors.telling import told


class MuteError(Exception):
    """Cannot say what is wrong."""

    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_error_is_told_with_its_class_even_if_it_has_no_words() -> None:
    assert told(KeyError("x")) == "KeyError: 'x'"
    assert told(MuteError()) == "MuteError, whose message cannot be made"
