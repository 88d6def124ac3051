"""The shipped contract suite, and what is particular to this format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from trims.core.errors import ArtifactError
from trims.testing.converters import ConverterContract, artifact_at, convert

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

MATRIX = np.arange(32 * 64, dtype="<f4").reshape(32, 64)


def write(path: Path) -> Path:
    rows = "\n".join(",".join(map(str, row)) for row in MATRIX.tolist())
    path.write_text(f"# trims matrix 32x64\n{rows}\n")
    return path


class TestCsvConverter(ConverterContract):
    """All that every format must keep."""

    format = "csv-matrix"

    def make(self, folder: Path) -> Path:
        """See `ConverterContract.make`."""
        return write(folder / "m.csv")

    def tensors(self) -> Mapping[str, NDArray[np.float32]]:
        """See `ConverterContract.tensors`."""
        return {"weight": MATRIX}


def test_a_word_among_the_numbers_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "m.csv")
    path.write_text(path.read_text().replace("64.0", "many", 1))
    with pytest.raises(ArtifactError, match=r"m\.csv, line 3: could not convert string to float: 'many'"):
        convert(artifact_at(path), tmp_path / "image")
