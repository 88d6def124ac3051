"""Pushed images on a server of files: what `trims push` leaves behind, without a bucket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import blake3
import numpy as np
from awscrt import checksums

from trims.image.plan import SourceTensor, plan_image

if TYPE_CHECKING:
    from tests.support.file_server import FileServer
    from trims.image.program import Program

KEY = "c" * 64


def image_bytes(nbytes: int = 3_000_000, *, seed: int = 5, program: Program | None = None) -> tuple[bytes, np.ndarray]:
    """Return an image with one tensor `weight`, and the tensor."""
    weight = np.random.default_rng(seed).random(nbytes // 8)

    def fill(place: memoryview) -> None:
        place[:] = weight.tobytes()

    plan = plan_image([SourceTensor("weight", "F64", weight.shape, fill=fill)], program=program)
    memory = bytearray(plan.nbytes)
    plan.write_into(memoryview(memory))
    return bytes(memory), weight


def described(data: bytes, **changed: Any) -> dict[str, Any]:
    """Return the description of an image."""
    return {
        "kind": "trims-image", "format_version": 1, "name": "m", "key": KEY, "digest": blake3.blake3(data).hexdigest(),
        "nbytes": len(data), "checksums": {"crc64nvme": f"{checksums.crc64nvme(data):016x}"}, "file": "m.safetensors",
        "format": "npz", "recipe": {"format": "npz"}, "manifest": {}, "signature": "", "cost_s": 2.0, **changed,
    }  # fmt: skip


def put(server: FileServer, data: bytes, path: str = "/bert", **changed: Any) -> str:
    """Serve an image and its description; return the address of both."""
    server.serve(f"{path}/m.safetensors", data, etag=f'"{checksums.crc64nvme(data):x}"')
    server.serve(f"{path}/trims.json", json.dumps(described(data, **changed)).encode())
    return f"{server.url}{path}"
