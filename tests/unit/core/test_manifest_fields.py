"""Fields of a manifest: each kind takes what it should, and says what is wrong with anything else."""

from __future__ import annotations

import re
from typing import Any

import pytest

from trims.core.errors import ManifestError
from trims.core.manifest_fields import CALL, Fields

WORD = re.compile(r"[a-z]+\Z")


def fields(**given: Any) -> Fields:
    return Fields(given, "here")


def test_a_whole_number_has_a_range() -> None:
    assert fields().count("n", 3) == 3
    assert fields(n=0).count("n", 3) == 0
    for wrong in (-1, 11, 1.0, True, "1"):
        with pytest.raises(ManifestError, match="here: 'n' must be a whole number from 0 to 10"):
            fields(n=wrong).count("n", 3, most=10)


def test_a_list_of_texts_follows_a_pattern() -> None:
    assert fields().texts("t", pattern=WORD, hint="a word") == ()
    assert fields(t=["a", "b"]).texts("t", pattern=WORD, hint="a word") == ("a", "b")
    for wrong in ("a", [1], ["A"], {"a": 1}):
        with pytest.raises(ManifestError, match="here: 't'"):
            fields(t=wrong).texts("t", pattern=WORD, hint="a word")


def test_what_was_not_taken_is_refused() -> None:
    given = fields(a=1, b=2)
    assert given.take("a") == 1
    with pytest.raises(ManifestError, match="unknown field 'b'"):
        given.done()
    with pytest.raises(ManifestError, match="must be a mapping with text keys, not list"):
        Fields([], "here")


@pytest.mark.parametrize("call", ["a:b", "a.b_c:D"])
def test_a_call_is_a_module_and_a_name(call: str) -> None:
    assert CALL.match(call)
    assert not CALL.match(call.replace(":", "."))
