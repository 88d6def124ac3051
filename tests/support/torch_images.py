"""PyTorch modules as image files, and inputs for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
from trims_client.frameworks._torch_dtypes import DTYPES  # noqa: E402

from trims.formats.base import Artifact  # noqa: E402
from trims.formats.conversion.conversion import converter  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import nn


MODULES = "trims.testing.torch_modules"


WORDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 10]])


IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)


def image_file(folder: Path, state: Any, name: str = "m", **options: Any) -> Path:
    """A checkpoint's image, converted in this process."""
    checkpoint, image = folder / f"{name}.pt", folder / f"{name}.image"
    torch.save(state, checkpoint)
    plan = converter("torch").plan(Artifact("torch", (checkpoint,), options))
    image.write_bytes(bytes(plan.nbytes))
    with image.open("r+b") as target:
        plan.write(target.fileno())
    return image


def with_skeleton(folder: Path, build: Callable[[], Any]) -> tuple[nn.Module, Path]:
    """A module with state no builder starts with, made by the framework alone; and its image."""
    torch.manual_seed(1)
    module = build()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-1, 1)
    for buffer in (tensor for name, tensor in module.named_buffers() if "running" in name):
        buffer.uniform_(0.5, 1.5)
    path = image_file(folder, module.state_dict(), module=f"{MODULES}:{build.__name__}")
    own = build()
    own.load_state_dict(torch.load(folder / "m.pt", weights_only=True))
    return own.eval(), path


def state() -> dict[str, torch.Tensor]:
    raw = torch.arange(48, dtype=torch.uint8) % 2
    tensors = {name: raw.view(dtype).clone() for name, dtype in DTYPES.items()}
    shared = torch.ones(2, 3)
    return tensors | {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "a": shared, "b": shared}
