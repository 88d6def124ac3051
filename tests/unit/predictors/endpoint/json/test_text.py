"""JSON up to a depth, with plain reasons for what is refused."""

from __future__ import annotations

import json

import pytest
from trims_predictors.endpoint.json.text import MOST_DEPTH, check_depth, load_json

from trims.core.errors import CallerError


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def test_what_is_as_deep_as_a_request_may_be_is_read() -> None:
    found = load_json(b"[" + b",".join([nested(MOST_DEPTH - 1)] * 1000) + b"]")
    assert len(found) == 1000


@pytest.mark.parametrize("deep", [nested(MOST_DEPTH + 1), b"[" * 100_000, b'{"a":' * 100 + b"1" + b"}" * 100])
def test_what_is_deeper_is_refused_before_it_is_read(deep: bytes) -> None:
    for text in (deep, b'{"a":[],"b":' + deep + b"}"):
        with pytest.raises(CallerError, match="at most 32 dimensions"):
            check_depth(text)
        with pytest.raises(CallerError, match="in one another more than 40 times"):
            load_json(text)


@pytest.mark.parametrize("text", ["[" * 100, '"' + "[" * 100, '\\"' * 50 + "[" * 50, "\\", '[{"' * 40])
def test_brackets_in_texts_do_not_count(text: str) -> None:
    assert load_json(json.dumps([text] * 3).encode()) == [text] * 3


def test_a_text_without_an_end_is_no_json_however_many_quotes_are_in_it() -> None:
    with pytest.raises(CallerError, match="not JSON"):
        load_json(b'["' + b'[\\"' * 100_000)


def test_a_number_with_too_many_digits_is_refused_in_plain_words() -> None:
    with pytest.raises(CallerError, match=r"^the request has a whole number of more digits than any data type holds$"):
        load_json(b"[" + b"9" * 5000 + b"]")


@pytest.mark.parametrize("wrong", [b"{", b"\xff", b"[1,]", b""])
def test_what_is_no_json_is_refused(wrong: bytes) -> None:
    with pytest.raises(CallerError, match="the request is not JSON"):
        load_json(wrong)
