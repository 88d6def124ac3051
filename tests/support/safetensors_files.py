"""Artifacts and images of as many tensors as a test asks for, written byte by byte."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING

from trims.image.plan import SourceTensor, plan_image
from trims.image.program import Program

if TYPE_CHECKING:
    from pathlib import Path

#: Numbers of tensors: the header of many is some 900 KB.
MANY, FEW = 10_000, 100
NAME = "model.layers.{}.attention.weight"


def safetensors_file(path: Path, tensors: int) -> Path:
    """A file of random bytes."""
    header = {
        NAME.format(number): {"dtype": "F32", "shape": [2], "data_offsets": [8 * number, 8 * number + 8]}
        for number in range(tensors)
    }
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + os.urandom(8 * tensors))
    return path


def a_file(folder: Path, tensors: int) -> Path:
    """A model in one file."""
    return safetensors_file(folder / "m.safetensors", tensors)


def shards(folder: Path, tensors: int) -> Path:
    """A model whose index names one shard."""
    safetensors_file(folder / "1.safetensors", tensors)
    main = folder / "m.safetensors.index.json"
    main.write_text(json.dumps({"weight_map": {NAME.format(number): "1.safetensors" for number in range(tensors)}}))
    return main


def an_image(folder: Path, tensors: int, kind: str = "mxnet-symbol") -> Path:
    """An image with a program of this kind."""
    sources = [SourceTensor(NAME.format(number), "F32", (2,)) for number in range(tensors)]
    planned = plan_image(sources, program=Program(kind, {}, b"body"))
    memory = bytearray(planned.nbytes)
    planned.write_into(memoryview(memory))
    (folder / "i.safetensors").write_bytes(memory)
    return folder / "i.safetensors"


def mxnet_model(folder: Path, tensors: int) -> Path:
    """A symbol and its params file; the symbol is returned."""
    array = struct.pack("<Iiiqiii", 0xF993FAC9, 0, 1, 2, 1, 0, 0) + bytes(8)
    names = [f"arg:{NAME.format(number)}".encode() for number in range(tensors)]
    listed = b"".join(struct.pack("<Q", len(name)) + name for name in names)
    (folder / "m-0000.params").write_bytes(
        struct.pack("<QQQ", 0x112, 0, tensors) + array * tensors + struct.pack("<Q", tensors) + listed
    )
    nodes = [{"op": "null", "name": NAME.format(number)} for number in range(tensors)]
    (folder / "m-symbol.json").write_text(json.dumps({"nodes": nodes}))
    return folder / "m-symbol.json"
