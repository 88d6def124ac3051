"""Files of a model in the program of its image."""

from __future__ import annotations

from typing import Any

import pytest

from trims.core.errors import ImageError
from trims.image.model_files import Described, described_in, with_files
from trims.image.program import Program

FILES = {"config.json": b"{}", "1_Pooling/config.json": b'{"a": 1}', "empty.txt": b""}


def test_files_come_back_behind_any_body() -> None:
    made = with_files(Program("torch-skeleton", {"versions": {}}, b"a pickle"), Described("fill-mask", FILES))
    again = Program.decode(made.encode())
    assert again.body.startswith(b"a pickle")
    assert again.attributes["versions"] == {}
    assert described_in(again) == ("fill-mask", FILES)


def test_a_program_without_files_describes_no_model() -> None:
    assert described_in(None) is None
    assert described_in(Program("torch-skeleton")) is None


@pytest.mark.parametrize(
    "model",
    [
        {"files": {}},
        {"task": "t", "files": {"a": [0, 10]}},
        {"task": "t", "files": {"a": [-5, 1]}},
        {"task": "t", "files": {"a": [3, -1]}},
        {"task": "t", "files": {"../a": [0, 1]}},
        {"task": "t", "files": {"/etc/a": [0, 1]}},
        {"task": "t", "files": {"a": ["x", 1]}},
        {"task": "t", "files": {"a": 1}},
        {"task": "t", "files": None},
        "nonsense",
    ],
)
def test_a_description_that_does_not_fit_its_body_is_refused(model: Any) -> None:
    with pytest.raises(ImageError):
        described_in(Program("transformers", {"model": model}, b"12345"))
