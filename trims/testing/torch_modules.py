"""Small torch modules with every trap that sharing weights has: for tests and examples, never for use.

Each function is what a manifest's option `module` may name.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn


class ConvNet(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Convolutions whose BatchNorm writes its running statistics in train mode."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Linear(width, 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, 2)."""
        return self.head(self.body(image).mean((2, 3)))


class TiedModel(nn.Module):  # type: ignore[misc]
    """An embedding that is its own output layer, a buffer outside the state dict, a bare tensor, a frozen weight."""

    def __init__(self, words: int = 11, width: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.out = nn.Linear(width, words, bias=False)
        self.out.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)
        self.register_buffer("positions", torch.arange(5.0).reshape(5, 1), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.bare = torch.linspace(0.0, 1.0, width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """(N, T <= 5) -> (N, T, words). Counts its calls."""
        self.calls += 1
        hidden = self.embedding(words) + self.positions[: words.shape[1]] * self.bare
        return self.out(hidden * self.scale)


class WithExtraState(nn.Linear):  # type: ignore[misc]
    """Carries what is no tensor in its state dict."""

    def get_extra_state(self) -> dict[str, int]:
        """Anything."""
        return {"epoch": 1}


def conv_net(width: int = 4) -> ConvNet:
    """Return a `ConvNet`."""
    return ConvNet(width)


def tied_model() -> TiedModel:
    """Return a `TiedModel`."""
    return TiedModel()


def with_extra_state() -> WithExtraState:
    """Return a module that images cannot carry."""
    return WithExtraState(1, 1)


def with_lambda() -> nn.Module:
    """Return a module that cannot be pickled."""
    module = ConvNet()
    module.body[0].activation = lambda value: value
    return module


class WithView(nn.Linear):  # type: ignore[misc]
    """Keeps a view of its weight, made before the weight has its values, and a hook that is a closure."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.turned = self.weight.detach().t()
        self.register_forward_hook(lambda _module, _inputs, output: output + 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(N, 3) -> (N, 2)."""
        return values @ self.turned + self.bias


def with_view() -> WithView:
    """Return a module with a view of its own weight."""
    return WithView()


def weight_normed() -> nn.Sequential:
    """Layers under weight_norm, which is a parametrization."""
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Linear(3, 4)), nn.ReLU(), norm(nn.Linear(4, 2)))


def weight_normed_by_hooks() -> nn.Sequential:
    """Layers under the older weight_norm (`torch.nn.utils.weight_norm`), which a hook computes before each pass."""
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the function is deprecated
        for layer in (module[0], module[2]):
            nn.utils.weight_norm(layer)
    return module


def spectrally_normed() -> nn.Sequential:
    """Return a layer under the older spectral_norm, whose weight is a view of a parameter until it is first used."""
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 2)))


def no_module() -> dict[str, Any]:
    """Return no module, which a builder must not do."""
    return {}


def tiny_bert(**config: Any) -> Any:
    """Return a BertModel of 2 layers, randomly initialised."""
    from transformers import BertConfig, BertModel

    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 32}
    return BertModel(BertConfig(num_hidden_layers=2, num_attention_heads=2, **sizes, **config))


def tiny_wav2vec2() -> Any:
    """Return a Wav2Vec2Model of one layer, whose position embedding is under weight_norm."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    layers = {"conv_dim": (8,), "conv_kernel": (10,), "conv_stride": (5,), "num_feat_extract_layers": 1}
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    return Wav2Vec2Model(Wav2Vec2Config(**layers, **sizes, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2))
