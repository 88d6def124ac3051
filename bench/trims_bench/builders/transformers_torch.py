"""Any model of transformers, by the names of its class and its configuration, in eval mode."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def build_module(model: str, config: str, **shape: Any) -> torch.nn.Module:
    """The module; `shape` changes entries of its configuration."""
    library = importlib.import_module("transformers")
    module: torch.nn.Module = getattr(library, model)(getattr(library, config)(**shape)).eval()
    return module
