"""Answers of the attach door: an error arrives as what it was, and never longer than a frame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import (
    BadMessageError,
    InternalError,
    TrimsError,
    error_classes,
)
from trims.wire.answers import MAX_ERROR_CHARACTERS, error_message, raise_if_error, shortened
from trims.wire.frames import Decoder, encode

CLASSES = sorted(error_classes().values(), key=lambda cls: cls.code)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.code)
def test_an_error_survives_the_attach_door(cls: type[TrimsError]) -> None:
    (message,) = Decoder().feed(encode(error_message(cls("who and what"), 7)))
    assert message["id"] == 7
    with pytest.raises(cls) as caught:
        raise_if_error(message)
    assert type(caught.value) is cls
    assert str(caught.value) == "who and what"


@given(st.text(max_size=3 * MAX_ERROR_CHARACTERS))
def test_any_error_fits_into_a_frame_and_keeps_its_beginning_and_end(words: str) -> None:
    (message,) = Decoder().feed(encode(error_message(InternalError(words), None)))
    told = message["error"]["message"]
    assert message["id"] is None
    assert told == words or len(words) > MAX_ERROR_CHARACTERS
    half = MAX_ERROR_CHARACTERS // 2
    assert told[:half] == words[:half]
    assert told[-half:] == words[-half:]


def test_what_is_left_out_of_a_long_message_is_counted() -> None:
    assert shortened("x" * MAX_ERROR_CHARACTERS) == "x" * MAX_ERROR_CHARACTERS
    assert "[... 1 characters left out ...]" in shortened("x" * (MAX_ERROR_CHARACTERS + 1))


def test_an_answer_without_an_error_is_given_back() -> None:
    answer = {"id": 1, "lease": 2}
    assert raise_if_error(answer) is answer
    assert raise_if_error({"id": 1, "error": None}) == {"id": 1, "error": None}


@pytest.mark.parametrize("error", ["capacity", ["capacity"], 0, True])
def test_an_error_that_is_no_object_is_a_bad_message(error: object) -> None:
    with pytest.raises(BadMessageError, match="the daemon sent an unreadable error"):
        raise_if_error({"id": 1, "error": error})


def test_an_error_without_a_code_is_told_as_unknown() -> None:
    with pytest.raises(InternalError, match=r"full .*unknown error code 'None'"):
        raise_if_error({"id": 1, "error": {"message": "full"}})
