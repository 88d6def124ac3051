"""Initializers of a model that ONNX Runtime saved, and the file of external data in which it saved them."""

from __future__ import annotations

import mmap
import tempfile
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import ConversionError

if TYPE_CHECKING:
    from pathlib import Path


class Initializer(NamedTuple):
    """Initializer that sessions feed: its bytes, ONNX's number of its data type, and its shape."""

    data: memoryview
    data_type: int
    shape: tuple[int, ...]


class Saved:
    """The file of external data ONNX Runtime saved, mapped."""

    def __init__(self, data: memoryview) -> None:
        self.data = data

    @classmethod
    def map(cls, path: Path) -> Saved:
        """Map the file; none or an empty one is a model without large weights."""
        if not path.exists() or not path.stat().st_size:
            return cls(memoryview(b""))
        with path.open("rb") as file:
            return cls(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))

    def of(self, tensor: Any) -> memoryview:
        """Return the bytes of one external tensor. Raises ConversionError if they were not all written."""
        entry = {pair.key: pair.value for pair in tensor.external_data}
        offset, length = int(entry.get("offset", 0)), int(entry["length"])
        if offset + length > len(self.data):
            raise ConversionError(
                f"initializer {tensor.name!r} was not written in full: {tempfile.gettempdir()} has no room "
                "for a copy of the weights; free some, or set TMPDIR"
            )
        return self.data[offset : offset + length]
