"""MXNet's files written byte by byte, and the image of a model that they make."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from trims.core.layout import DTYPE_BYTES, element_count
from trims.formats.base import Artifact
from trims.formats.mxnet.converter import MxnetConverter
from trims.image.check import check_image
from trims.image.reader import ImageView

if TYPE_CHECKING:
    from pathlib import Path

CONVERTER = MxnetConverter()


FLAGS = {"F32": 0, "F64": 1, "F16": 2, "U8": 3, "I32": 4, "I8": 5, "I64": 6, "BOOL": 7}


SYMBOL = {"nodes": [{"op": "null", "name": "data"}, {"op": "null", "name": "w"}, {"op": "abs", "name": "y"}]}


def array(dtype: str, shape: tuple[int, ...], fill: int = 1, *, generation: int = 2) -> bytes:
    """One dense array as MXNet stores it: generation 0 is the oldest."""
    data = bytes([fill]) * (element_count(shape) * DTYPE_BYTES[dtype])
    tail = struct.pack("<iii", 1, 0, FLAGS[dtype]) + data
    if generation == 0:
        return struct.pack(f"<I{len(shape)}I", len(shape), *shape) + tail
    storage = b"" if generation == 1 else struct.pack("<i", 0)
    head = struct.pack("<I", 0xF993FAC7 + generation) + storage
    return head + struct.pack(f"<i{len(shape)}q", len(shape), *shape) + tail


def params(arrays: dict[str, bytes]) -> bytes:
    names = b"".join(struct.pack("<Q", len(name.encode())) + name.encode() for name in arrays)
    count = struct.pack("<Q", len(arrays))
    return struct.pack("<QQ", 0x112, 0) + count + b"".join(arrays.values()) + count + names


def save(folder: Path, arrays: dict[str, bytes] | bytes, symbol: Any = None, *, epoch: int = 0) -> Path:
    """Write both files, and return the symbol's path."""
    data = arrays if isinstance(arrays, bytes) else params(arrays)
    (folder / f"m-{epoch:04d}.params").write_bytes(data)
    main = folder / "m-symbol.json"
    main.write_bytes(symbol if isinstance(symbol, bytes) else json.dumps(symbol or SYMBOL).encode())
    return main


def image(main: Path, **options: Any) -> ImageView:
    plan = CONVERTER.plan(Artifact("mxnet", CONVERTER.files(main, options), options))
    target = bytearray(plan.nbytes)
    plan.write_into(memoryview(target))
    view = ImageView(memoryview(bytes(target)))
    check_image(view)
    return view
