"""Fields of messages: what passes is what JSON carries exactly, and every error names the field."""

from __future__ import annotations

from typing import Any

import pytest

from trims.core.errors import BadMessageError
from trims.wire.fields import number, only, text


@pytest.mark.parametrize("value", [0, 1, (1 << 53) - 1])
def test_a_whole_number_that_json_keeps_passes(value: int) -> None:
    assert number({"n": value}, "n") == value


@pytest.mark.parametrize("value", [None, -1, 1 << 53, 1.0, True, "1", [1]])
def test_anything_else_is_refused_with_the_name_of_the_field(value: Any) -> None:
    with pytest.raises(BadMessageError, match=r"'n' must be a whole number from 0 to 2\^53 - 1, not"):
        number({"n": value}, "n")
    with pytest.raises(BadMessageError, match="'n' must be a whole number"):
        number({}, "n")


def test_text_may_be_left_out_and_is_bounded() -> None:
    assert text({}, "t") is None
    assert text({"t": "é" * 4096}, "t") == "é" * 4096
    for wrong in ("x" * 4097, "a\0b", 7, ["a"], "\ud800"):
        with pytest.raises(BadMessageError, match="'t' "):
            text({"t": wrong}, "t")


def test_a_field_that_no_operation_has_is_named() -> None:
    only({"op": "close", "id": 1}, "id", "lease")
    with pytest.raises(BadMessageError, match="unknown field 'lese' in 'close'"):
        only({"op": "close", "lese": 1}, "id", "lease")
