"""A transformers model of MiniLM's shape (6 layers of 384, 22.7 million parameters, 87 MiB) in eval mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import BertConfig, BertModel

if TYPE_CHECKING:
    import torch

SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def build_module(**shape: Any) -> torch.nn.Module:
    """The module; `shape` changes entries of its configuration."""
    module: torch.nn.Module = BertModel(BertConfig(**{**SHAPE, **shape})).eval()
    return module
