"""Folders of published models: which file has the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trims.core.errors import CallerError
from trims.formats.folders import weights_in

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["config.json", "model.safetensors", "pytorch_model.bin"], "model.safetensors"),
        (["model.safetensors.index.json", "model-00001-of-00002.safetensors"], "model.safetensors.index.json"),
        (["pytorch_model.bin", "training_args.bin", "optimizer.pt"], "pytorch_model.bin"),
        (["weights.pt", "training_args.bin", "README.md"], "weights.pt"),
        (["own.safetensors.index.json", "own-00001-of-00001.safetensors"], "own.safetensors.index.json"),
        (["net-symbol.json", "README.md"], "net-symbol.json"),
    ],
)
def test_the_weights_are_found_by_name(names: list[str], found: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    assert weights_in(tmp_path).name == found


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "holds none"),
        (["README.md", "optimizer.pt"], "holds none"),
        (["a.pt", "b.pt"], "several"),
        (["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"], "index"),
        ([f"{number:03}.pt" for number in range(50)], "and 30 more"),
        (["a\x1b[31m.pt", "b.pt"], r"\\x1b"),
    ],
)
def test_a_folder_without_one_file_that_is_meant_says_what_it_holds(
    names: list[str], words: str, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(CallerError, match=words):
        weights_in(tmp_path)
