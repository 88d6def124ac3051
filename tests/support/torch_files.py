"""PyTorch checkpoints of tests, and the tensors of the images they become."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from trims_client.frameworks._torch_dtypes import DTYPES as _DTYPES  # noqa: E402

from trims.formats.base import Artifact  # noqa: E402
from trims.formats.torch.converter import TorchConverter  # noqa: E402
from trims.image.check import check_image  # noqa: E402
from trims.image.reader import ImageView  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


CONVERTER = TorchConverter()


MODULES = "trims.testing.torch_modules"


class Trap:
    """Unpickling it makes a folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def saved(folder: Path, value: Any, **how: Any) -> Path:
    path = folder / "m.pt"
    torch.save(value, path, **how)
    return path


def image_of(path: Path, **options: Any) -> ImageView:
    """Through plan and write, in this process: the child has tests of its own."""
    plan = CONVERTER.plan(Artifact("torch", CONVERTER.files(path, options), options))
    memory = bytearray(plan.nbytes)
    plan.write_into(memoryview(memory))
    view = ImageView(memoryview(memory).toreadonly())
    check_image(view)
    return view


def tensors_of(view: ImageView) -> dict[str, torch.Tensor]:
    return {
        spec.name: torch.frombuffer(bytearray(view.tensor(spec.name)), dtype=_DTYPES[spec.dtype]).view(spec.shape)
        if spec.nbytes
        else torch.empty(spec.shape, dtype=_DTYPES[spec.dtype])
        for spec in view.layout
    }


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape, bits(found[name])) == (tensor.dtype, tensor.shape, bits(tensor))
