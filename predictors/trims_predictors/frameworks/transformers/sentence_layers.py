"""Poolings of tokens' vectors, and layers behind them, as sentence-transformers computes them."""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load as load_safetensors

from trims.core.errors import NotSupportedError
from trims.manifests.sentence_modules import (
    MOST_ACTIVE,
    POOLING_NAMES,
    activation_of,
    bound_of,
    poolings_of,
    splade_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.manifests.sentence_modules import Module

    #: Token vectors of shape (rows, tokens, width) and the mask of tokens -> one vector for each row.
    Pooling = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    Layer = Callable[[torch.Tensor], torch.Tensor]


def layers_of(modules: Sequence[Module], files: Mapping[str, bytes], normalize: bool | None) -> list[Layer]:
    """Return the layers behind the pooling, and what the folder cuts their vectors by, which stay as long as they are.

    Args:
        normalize: The manifest's option, which normalizes at the end or nowhere; None to follow the modules.

    Raises NotSupportedError for a layer whose weights are not there, ArtifactError for a bound that is none.
    """
    layers: list[Layer] = []
    for each in modules:
        if each.kind == "Normalize":
            layers.append(_normalize)
        elif each.kind == "Dense":
            layers.append(_dense(files, each))
        elif each.kind == "LayerNorm":
            layers.append(_layer_norm(files, each))
    if normalize is False:
        layers = [each for each in layers if each is not _normalize]
    name, most = bound_of(modules, files)
    if most is not None:
        layers.append(partial(_largest if name == MOST_ACTIVE else _first, most))
    if normalize and layers[-1:] != [_normalize]:
        layers.append(_normalize)
    return layers


def pool_of(module: Module | None, option: str | None) -> Pooling:
    """Return the pooling of a module, or of the manifest's option, else the mean."""
    if option is None and module is not None and module.kind == "SpladePooling":
        return _splade(*splade_of(module.config))
    names = poolings_of({} if module is None else module.config)
    if option is not None:
        names = [POOLING_NAMES.get(option, option)]
    chosen = [_POOLINGS[name] for name in names]
    if len(chosen) == 1:
        return chosen[0]
    return lambda vectors, mask: torch.cat([pool(vectors, mask) for pool in chosen], 1)


def _normalize(vectors: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(vectors, p=2, dim=1)


def _first(most: int, vectors: torch.Tensor) -> torch.Tensor:
    return vectors[:, :most]


def _largest(most: int, vectors: torch.Tensor) -> torch.Tensor:
    """Return vectors with so many of their largest numbers by amount, and zeros in place of the others."""
    chosen = vectors.abs().topk(min(most, vectors.shape[1]), 1).indices
    return torch.zeros_like(vectors).scatter_(1, chosen, vectors.gather(1, chosen))


def _dense(files: Mapping[str, bytes], module: Module) -> Layer:
    """Return a linear layer with its activation, and what it adds of its input."""
    state = _state(files, module)
    weight, bias, residual = state["linear.weight"], state.get("linear.bias"), state.get("residual.weight")
    adds = bool(module.config.get("use_residual"))
    activation = getattr(torch.nn, activation_of(module.config, f"module {module.path}"))()

    def layer(vectors: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = activation(_linear(vectors, weight, bias))
        if not adds:
            return made
        return made + (vectors if residual is None else _linear(vectors, residual, None))

    return layer


def _linear(vectors: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    own = None if bias is None else bias.to(vectors)
    return torch.nn.functional.linear(vectors, weight.to(vectors), own)


def _layer_norm(files: Mapping[str, bytes], module: Module) -> Layer:
    state = _state(files, module)
    weight, bias = state["norm.weight"], state["norm.bias"]
    return lambda vectors: torch.nn.functional.layer_norm(vectors, weight.shape, weight.to(vectors), bias.to(vectors))


def _state(files: Mapping[str, bytes], module: Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a layer."""
    if (content := files.get(f"{module.path}/model.safetensors")) is not None:
        return dict(load_safetensors(content))
    if (content := files.get(f"{module.path}/pytorch_model.bin")) is not None:
        return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    raise NotSupportedError(f"the folder has no weights of its module {module.path}")


# -- poolings, in the order in which sentence-transformers joins those that are switched on ---------------------------


def _masked(mask: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    return mask.unsqueeze(-1).expand(vectors.shape).to(vectors.dtype)


def _cls(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the vector of the first token that is no padding."""
    first = mask.to(torch.int64).argmax(1)
    return vectors[torch.arange(len(vectors), device=vectors.device), first]


def _max(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return vectors.masked_fill(_masked(mask, vectors) == 0, float("-inf")).max(1).values


def _mean(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = _masked(mask, vectors)
    return (vectors * kept).sum(1) / kept.sum(1).clamp(min=1e-9)


def _mean_sqrt(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = _masked(mask, vectors)
    return (vectors * kept).sum(1) / kept.sum(1).clamp(min=1e-9).sqrt()


def _weighted_mean(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = _masked(mask, vectors) * mask.cumsum(1).to(vectors.dtype).unsqueeze(-1)
    return (vectors * kept).sum(1) / kept.sum(1).clamp(min=1e-9)


def _last(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the vector of the last token that is no padding."""
    last = mask.shape[1] - 1 - mask.flip(1).to(torch.int64).argmax(1)
    return vectors[torch.arange(len(vectors), device=vectors.device), last]


_POOLINGS: Mapping[str, Pooling] = {
    "cls": _cls, "max": _max, "mean": _mean, "mean_sqrt_len_tokens": _mean_sqrt, "weightedmean": _weighted_mean,
    "lasttoken": _last,
}  # fmt: skip


def _splade(strategy: str, activation: str) -> Pooling:
    """Return the pooling of a sparse vector: for each word of the vocabulary, how much a text is about it."""

    def pool(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        kept = (scores * mask.unsqueeze(-1).to(scores.dtype)).relu_().log1p_()
        if activation == "log1p_relu":
            kept = kept.log1p_()
        return kept.amax(1) if strategy == "max" else kept.sum(1)

    return pool
