"""Names inside a program are exchanged for others of the same length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trims.core.errors import CallerError
from trims.image.external import exchange_name, pad_name

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("letters", [4, 6, 7, 8, 41, 224])
def test_a_padded_name_leads_to_the_same_file(tmp_path: Path, letters: int) -> None:
    (tmp_path / "file").write_text("here")
    padded = pad_name("file", letters)
    assert len(padded) == letters
    assert not padded.startswith("/")
    assert (tmp_path / padded).read_text() == "here"


def test_letters_are_counted_as_bytes() -> None:
    assert len(pad_name("gewichte-ä", 40).encode()) == 40


@pytest.mark.parametrize(("letters", "complaint"), [(3, "is longer than the 3 bytes"), (5, "one byte longer")])
def test_a_name_that_cannot_have_that_length_is_refused(letters: int, complaint: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        pad_name("file", letters)


def test_only_the_name_changes_and_no_other_byte_moves() -> None:
    before = pad_name("null", 32)
    body = b"\x0a\x20" + before.encode() + b"rest" + before.encode()
    after = exchange_name(body, before, "weights")
    assert after == body.replace(before.encode(), pad_name("weights", 32).encode())
    assert len(after) == len(body)
