"""The file that keeps what templates have learned: read as it was written, and empty if anything is wrong with it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from trims_predictors.children.launcher import Environment
from trims_predictors.warm.learned import read_learned, write_learned

if TYPE_CHECKING:
    from pathlib import Path

TORCH = Environment("torch")
OTHER = Environment("torch", sys.executable, "acme")


def test_what_was_learned_is_read_as_it_was_written(tmp_path: Path) -> None:
    learned = {TORCH: ["transformers.models.bert", "regex"], OTHER: ["scipy"]}
    write_learned(tmp_path / "learned.json", learned)
    assert read_learned(tmp_path / "learned.json") == learned
    write_learned(tmp_path / "learned.json", {TORCH: []})
    assert read_learned(tmp_path / "learned.json") == {TORCH: []}
    assert [path.name for path in tmp_path.iterdir()] == ["learned.json"]


def test_an_environment_that_was_removed_is_left_out(tmp_path: Path) -> None:
    write_learned(tmp_path / "learned.json", {TORCH: ["a"], Environment("mxnet", str(tmp_path / "python")): ["b"]})
    assert read_learned(tmp_path / "learned.json") == {TORCH: ["a"]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"version": 2, "environments": []}',
        '{"version": 1, "environments": [{"framework": "torch"}]}',
        '{"version": 1, "environments": [{"framework": 1, "python": "", "tenant": "", "modules": []}]}',
        '{"version": 1, "environments": [{"framework": "torch", "python": "", "tenant": "", "modules": [[]]}]}',
        "[" * 100_000,
        "\ud800".encode("utf-8", "surrogatepass"),
    ],
)
def test_a_damaged_file_counts_as_empty(tmp_path: Path, text: str | bytes) -> None:
    (tmp_path / "learned.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert read_learned(tmp_path / "learned.json") == {}


def test_names_that_no_module_has_are_left_out(tmp_path: Path) -> None:
    row = {"framework": "torch", "python": "", "tenant": "", "modules": ["a.b", "..", "import os", "", "x" * 9]}
    (tmp_path / "learned.json").write_text(json.dumps({"version": 1, "environments": [row]}))
    assert read_learned(tmp_path / "learned.json") == {TORCH: ["a.b", "x" * 9]}


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_learned(tmp_path / "gone" / "learned.json", {TORCH: ["a"]})
    assert "is not kept" in caplog.text
