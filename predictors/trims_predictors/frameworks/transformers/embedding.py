"""Vectors of texts: hidden states of each token, and one embedding of each text as sentence-transformers makes it."""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load as load_safetensors

from trims.core.errors import NotSupportedError
from trims.image.static_embeddings import TABLE
from trims.manifests.sentence_modules import (
    MOST_ACTIVE,
    POOLING_NAMES,
    POOLINGS,
    Module,
    activation_of,
    bound_of,
    check_modules,
    is_static,
    leaves_out_prompt,
    masks_words,
    poolings_of,
    prompt_of,
    read_modules,
    settings_in,
    splade_of,
)
from trims.manifests.task_options import check_options
from trims.manifests.tasks import EMBEDDING, FEATURES
from trims_predictors.frameworks.transformers.answers import Answer
from trims_predictors.frameworks.transformers.tokens import LengthLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.manifests.sentence_modules import Module

    #: Token vectors of shape (rows, tokens, width) and the mask of tokens -> one vector for each row.
    Pooling = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    Layer = Callable[[torch.Tensor], torch.Tensor]

    from trims_predictors.frameworks.transformers.answers import Parts
    from trims_predictors.frameworks.transformers.requests import Inputs


# Poolings of tokens' vectors, and layers behind them, as sentence-transformers computes them.


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


_BATCH = 32


class Features:
    """Hidden states of the last layer."""

    def __init__(self, parts: Parts) -> None:
        check_options(parts.options, FEATURES)
        self._tokenizer, self._module = parts.tokenizer(), parts.module
        self._limit = LengthLimit(self._tokenizer, parts.module.config, parts.options)

    def __call__(self, inputs: Inputs) -> Answer:
        """Return the vectors of each text's tokens; those of shorter texts of a request end in zeros."""
        texts = inputs.texts()
        inputs.check_all_read()
        self._limit.check(texts)
        found = [self._one(each) for each in texts]

        def features() -> np.ndarray[Any, Any]:
            longest = max((len(each) for each in found), default=0)
            width = found[0].shape[1] if found else 0
            made = np.zeros((len(found), longest, width), dtype=np.float32)
            for index, each in enumerate(found):
                made[index, : len(each)] = each
            return made

        return Answer(lambda: {"features": features()}, lambda: [[each] for each in found], features)

    def _one(self, text: str) -> np.ndarray[Any, Any]:
        """Return the vectors of one text, of shape (tokens, width). Alone: no padding changes them."""
        tokens = self._tokenizer(text, return_tensors="pt", **self._limit.arguments())
        hidden = self._module(**_accepted(self._module, tokens.to(self._module.device)))[0][0]
        vectors: np.ndarray[Any, Any] = hidden.float().cpu().numpy()
        return vectors


def _accepted(module: torch.nn.Module, tokens: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tokenizer's tensors, which a model that takes none of some kind would refuse."""
    import inspect

    known = inspect.signature(module.forward).parameters
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()) and "kwargs" not in known
    return {name: each for name, each in tokens.items() if takes_all or name in known}


class SentenceEmbedding:
    """One vector of each text, by the folder's own modules of sentence-transformers."""

    def __init__(self, parts: Parts) -> None:
        files, options = parts.described.files, parts.options
        modules = read_modules(files)
        check_options(options, EMBEDDING, is_static=is_static(modules))
        check_modules(modules, "the model's folder")
        self._batch = options.get("batch_size", _BATCH)
        self._prompt = prompt_of(files, options.get("prompt"))
        self._reader = StaticReader(parts) if is_static(modules) else TransformerReader(parts, modules, self._prompt)
        self._layers = layers_of(modules[1:], files, options.get("normalize"))

    def __call__(self, inputs: Inputs) -> Answer:
        """Return the embedding of each text, FP32 of shape (rows, width)."""
        texts = inputs.texts()
        inputs.check_all_read()
        self._reader.check([self._prompt + each for each in texts])
        counts = np.zeros(len(texts), dtype=np.int64)
        found = self.embed(texts, counts)
        return Answer(
            lambda: {"embedding": found},
            found.tolist,
            lambda: found.astype(np.float64),
            lambda: {"prompt_tokens": counts},
        )

    def embed(self, texts: Sequence[str], counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return one vector of each text. Texts of about the same length run together, which pads least.

        Args:
            counts: Takes the number of tokens of each.
        """
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        found: list[np.ndarray[Any, Any]] = [np.empty(0)] * len(texts)
        for start in range(0, len(order), self._batch):
            chosen = order[start : start + self._batch]
            vectors, counts[chosen] = self._run([texts[each] for each in chosen])
            for index, vector in zip(chosen, vectors, strict=True):
                found[index] = vector
        made = np.stack(found) if found else self._finished(torch.zeros((0, self._reader.width)))
        return made.astype(np.float32)

    def _run(self, texts: Sequence[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        vectors, counts = self._reader.read(self._prompt, texts)
        return self._finished(vectors), counts

    def _finished(self, vectors: torch.Tensor) -> np.ndarray[Any, Any]:
        for layer in self._layers:
            vectors = layer(vectors)
        finished: np.ndarray[Any, Any] = vectors.float().cpu().numpy()
        return finished


class TransformerReader:
    """Vectors of texts: those of a transformer's tokens, pooled.

    Args:
        modules: The folder's; none for a folder without `modules.json`.
        prompt: Text before each text.
    """

    def __init__(self, parts: Parts, modules: Sequence[Module], prompt: str) -> None:
        settings, options = settings_in(parts.described.files), dict(parts.options)
        self._tokenizer, self._module = parts.tokenizer(), parts.module
        if settings.get("max_seq_length") and "max_length" not in options:
            options["max_length"] = settings["max_seq_length"]
        self._lower = bool(settings.get("do_lower_case"))
        limit = LengthLimit(self._tokenizer, parts.module.config, options, truncation=True)
        self.check, self._limit = limit.check, limit
        pooling = next((each for each in modules if each.kind in POOLINGS), None)
        self._pool = pool_of(pooling, options.get("pooling"))
        width = parts.module.config.vocab_size if masks_words(modules) else parts.module.config.hidden_size
        self.width = self._pool(torch.zeros((1, 1, width)), torch.ones((1, 1))).shape[1]
        leaves_out = prompt and pooling is not None and leaves_out_prompt(pooling)
        self._prompt_tokens = self._tokens_of(prompt) if leaves_out else 0

    def read(self, prompt: str, texts: Sequence[str]) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
        """Return one vector of each text, and the number of its tokens."""
        prepared = [prompt + (each.lower() if self._lower else each) for each in texts]
        tokens = self._tokenizer(prepared, return_tensors="pt", padding=True, **self._limit.arguments())
        tokens = tokens.to(self._module.device)
        hidden = self._module(**_accepted(self._module, tokens))[0]
        mask = tokens["attention_mask"]
        counts: np.ndarray[Any, Any] = mask.sum(1).cpu().numpy()
        if self._prompt_tokens:
            mask = mask * (mask.cumsum(1) > self._prompt_tokens)
        return self._pool(hidden, mask), counts

    def _tokens_of(self, prompt: str) -> int:
        """Return how many tokens a text begins with for its prompt, without the special one at their end."""
        numbers = self._tokenizer(prompt, **self._limit.arguments())["input_ids"]
        return len(numbers) - (bool(numbers) and numbers[-1] in self._tokenizer.all_special_ids)


class StaticReader:
    """Vectors of texts: the mean of those that a table has for their tokens."""

    def __init__(self, parts: Parts) -> None:
        from tokenizers import Tokenizer

        content = parts.described.files.get("tokenizer.json")
        if content is None:
            raise NotSupportedError(
                "the model's folder has no tokenizer.json, which a static embedding needs; put it there"
            )
        self._tokenizer = Tokenizer.from_str(content.decode())
        self._tokenizer.no_padding()
        self._bag = parts.module.get_submodule(TABLE)
        self.check = LengthLimit(None, None, parts.options).check_bytes
        self.width = self._bag.embedding_dim

    def read(self, prompt: str, texts: Sequence[str]) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
        """Return one vector of each text, and the number of its tokens."""
        rows = self._tokenizer.encode_batch([prompt + each for each in texts], add_special_tokens=False)
        counts = np.array([len(row.ids) for row in rows], dtype=np.int64)
        numbers = torch.tensor([number for row in rows for number in row.ids], dtype=torch.long)
        begins = torch.from_numpy(np.concatenate([[0], counts[:-1]]).cumsum())
        place = self._bag.weight.device
        return self._bag(numbers.to(place), begins.to(place)), counts
