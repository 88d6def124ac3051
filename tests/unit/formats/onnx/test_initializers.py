"""External data that ONNX Runtime saved is read where it lies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import ConversionError
from trims.formats.onnx.initializers import Saved

if TYPE_CHECKING:
    from pathlib import Path


def tensor(**entries: str) -> Any:
    return SimpleNamespace(
        name="w", external_data=[SimpleNamespace(key=key, value=each) for key, each in entries.items()]
    )


def test_a_tensors_bytes_are_those_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"0123456789")
    saved = Saved.map(tmp_path / "weights")
    assert bytes(saved.of(tensor(offset="2", length="3"))) == b"234"
    assert bytes(saved.of(tensor(length="2"))) == b"01"
    with pytest.raises(ConversionError, match="'w' was not written in full"):
        saved.of(tensor(offset="8", length="3"))


@pytest.mark.parametrize("content", [None, b""])
def test_a_model_without_large_weights_has_no_bytes(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "weights").write_bytes(content)
    assert len(Saved.map(tmp_path / "weights").data) == 0
