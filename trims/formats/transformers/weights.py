"""Weights of a Hugging Face folder as an artifact of their own format: safetensors, or PyTorch's pickled files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.formats.base import Artifact
from trims.formats.safetensors.converter import SafetensorsConverter
from trims.formats.torch.converter import TorchConverter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def format_of(weights: Path) -> SafetensorsConverter | TorchConverter:
    """Return the converter of a file of weights, or of an index of shards."""
    return SafetensorsConverter() if ".safetensors" in weights.name else TorchConverter()


def weight_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of a folder that are its weights'."""
    return {name: options[name] for name in ("allow_pickle",) if name in options}


def weights_of(weights: Path, options: Mapping[str, Any]) -> Artifact:
    """Return a folder's weights as an artifact of their own format."""
    chosen, given = format_of(weights), weight_options(options)
    return Artifact(chosen.format, chosen.files(weights, given), given)
