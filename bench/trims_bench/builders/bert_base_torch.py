"""BERT-base as transformers builds it, 109,482,240 parameters, with seeded initial weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import BertConfig, BertModel

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "bert-base.pt"


def build(out_dir: Path, *, seed: int) -> str:
    """Write the state dict, `bert-base.pt` (418 MiB), and return its name."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state = build_module().state_dict()
    torch.save(dict(state), out_dir / FILE_NAME)
    return FILE_NAME


def build_module() -> torch.nn.Module:
    """The module in eval mode; its configuration is the library's default, which is BERT-base."""
    module: torch.nn.Module = BertModel(BertConfig()).eval()
    return module
