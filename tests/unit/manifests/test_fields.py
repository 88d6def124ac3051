"""Fields of a manifest: each kind takes what it should, and says what is wrong with anything else."""

from __future__ import annotations

import re
from typing import Any

import pytest

from trims.core.errors import ManifestError
from trims.manifests.fields import CALL, Fields, parse_package

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
    given = fields(artefact=1)
    given.take("name"), given.take("artifact")
    with pytest.raises(
        ManifestError, match=r"unknown field 'artefact'; did you mean 'artifact'\? known are artifact, name"
    ):
        given.done()
    with pytest.raises(ManifestError, match="must be a mapping with text keys, not list"):
        Fields([], "here")


@pytest.mark.parametrize("call", ["a:b", "a.b_c:D"])
def test_a_call_is_a_module_and_a_name(call: str) -> None:
    assert CALL.match(call)
    assert not CALL.match(call.replace(":", "."))


def test_a_number_is_finite_and_may_be_a_ratio() -> None:
    assert fields().number("n", 2.0) == 2.0
    assert (fields(n=3).number("n", 0.0), fields(n="1/4").number("n", 0.0)) == (3.0, 0.25)
    for wrong in (True, "x", "1/0", float("inf"), float("nan"), [1]):
        with pytest.raises(ManifestError, match="here: 'n' must be a finite number"):
            fields(n=wrong).number("n", 0.0)


def test_a_list_of_numbers_may_be_one_number() -> None:
    assert fields().numbers("n") == ()
    assert (fields(n=0.5).numbers("n"), fields(n=[1, "1/2"]).numbers("n")) == ((0.5,), (1.0, 0.5))
    for wrong in ([], [None], "x", {"a": 1}):
        with pytest.raises(ManifestError, match="here: 'n'"):
            fields(n=wrong).numbers("n")


def test_a_file_in_a_package_stays_there() -> None:
    assert parse_package(None, "here") is None
    assert parse_package({"name": "a.b", "path": "c/d"}, "here") == ("a.b", "c/d")
    for wrong in ({"name": "a"}, {"name": "1", "path": "c"}, {"name": "a", "path": "../c"}, "a"):
        with pytest.raises(ManifestError, match="here"):
            parse_package(wrong, "here")
