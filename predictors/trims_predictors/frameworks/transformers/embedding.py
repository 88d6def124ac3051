"""Vectors of texts: hidden states of each token, and one embedding of each text as sentence-transformers makes it."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load as load_safetensors

from trims.core.errors import NotSupportedError
from trims_predictors.frameworks.transformers.answers import Answer
from trims_predictors.frameworks.transformers.options import TEXT, check_options
from trims_predictors.frameworks.transformers.tokens import LengthLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims_predictors.frameworks.transformers.answers import Parts
    from trims_predictors.frameworks.transformers.requests import Inputs

    #: Token vectors of shape (rows, tokens, width) and the mask of tokens -> one vector for each row.
    Pooling = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    Layer = Callable[[torch.Tensor], torch.Tensor]

_BATCH = 32
_MODULES, _SETTINGS, _PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"


class Features:
    """Hidden states of the last layer."""

    def __init__(self, parts: Parts) -> None:
        check_options(parts.options, (*TEXT, "batch_size"), "feature-extraction")
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
    """One vector of each text, by the folder's own pooling, layers and normalization."""

    def __init__(self, parts: Parts) -> None:
        check_options(parts.options, (*TEXT, "batch_size", "normalize", "pooling", "prompt"), "sentence-embedding")
        files, options = parts.described.files, dict(parts.options)
        self._tokenizer, self._module = parts.tokenizer(), parts.module
        settings = json.loads(files[_SETTINGS]) if _SETTINGS in files else {}
        if settings.get("max_seq_length") and "max_length" not in options:
            options["max_length"] = settings["max_seq_length"]
        self._lower = bool(settings.get("do_lower_case"))
        self._limit = LengthLimit(self._tokenizer, parts.module.config, options, truncation=True)
        self._batch = options.get("batch_size", _BATCH)
        self._prompt = _prompt_of(files, options.get("prompt"))
        self._pool, self._layers = _modules_of(files, options, self._prompt)

    def __call__(self, inputs: Inputs) -> Answer:
        """Return the embedding of each text, FP32 of shape (rows, width)."""
        texts = inputs.texts()
        inputs.check_all_read()
        self._limit.check([self._prompt + each for each in texts])
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
            texts: Of the request.
            counts: Takes the number of tokens of each.
        """
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        found: list[np.ndarray[Any, Any]] = [np.empty(0)] * len(texts)
        for start in range(0, len(order), self._batch):
            chosen = order[start : start + self._batch]
            vectors, counts[chosen] = self._run([texts[each] for each in chosen])
            for index, vector in zip(chosen, vectors, strict=True):
                found[index] = vector
        width = self._module.config.hidden_size if not found else len(found[0])
        return np.stack(found).astype(np.float32) if found else np.zeros((0, width), dtype=np.float32)

    def _run(self, texts: Sequence[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        prepared = [self._prompt + (each.lower() if self._lower else each) for each in texts]
        tokens = self._tokenizer(prepared, return_tensors="pt", padding=True, **self._limit.arguments())
        tokens = tokens.to(self._module.device)
        hidden = self._module(**_accepted(self._module, tokens))[0]
        vectors = self._pool(hidden, tokens["attention_mask"])
        for layer in self._layers:
            vectors = layer(vectors)
        return vectors.float().cpu().numpy(), tokens["attention_mask"].sum(1).cpu().numpy()


def _prompt_of(files: Mapping[str, bytes], chosen: str | None) -> str:
    """Return the text before each text: that of the chosen name, or the folder's default."""
    stated = json.loads(files[_PROMPTS]) if _PROMPTS in files else {}
    prompts, default = stated.get("prompts") or {}, stated.get("default_prompt_name")
    name = chosen or default
    if name and name not in prompts:
        known = ", ".join(prompts) or "none"
        raise NotSupportedError(f"the folder has no prompt {name!r}; it has {known}")
    return str(prompts[name]) if name else ""


def _modules_of(files: Mapping[str, bytes], options: Mapping[str, Any], prompt: str) -> tuple[Pooling, list[Layer]]:
    """Return the pooling and the layers behind it that `modules.json` lists. Raises NotSupportedError."""
    listed = json.loads(files[_MODULES]) if _MODULES in files else []
    pool: Pooling | None = None
    layers: list[Layer] = []
    for each in listed[1:]:
        kind, path = str(each["type"]).rpartition(".")[2], str(each["path"]).strip("/")
        if kind == "Pooling":
            config = json.loads(files[f"{path}/config.json"])
            if prompt and config.get("include_prompt") is False:
                raise NotSupportedError("the folder's pooling leaves out its prompt, which is not supported")
            pool = _pooling(config)
        elif kind == "Normalize":
            layers.append(_normalize)
        elif kind == "Dense":
            layers.append(_dense(files, path))
        elif kind != "Dropout":
            raise NotSupportedError(f"modules.json of the folder has a {kind}, which is not supported")
    if "pooling" in options:
        pool = _pooling({"pooling_mode": options["pooling"]})
    if options.get("normalize", False) and _normalize not in layers:
        layers.append(_normalize)
    if options.get("normalize") is False:
        layers = [each for each in layers if each is not _normalize]
    return pool or _mean, layers


def _normalize(vectors: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(vectors, p=2, dim=1)


def _dense(files: Mapping[str, bytes], path: str) -> Layer:
    """Return a linear layer with its activation."""
    config = json.loads(files[f"{path}/config.json"])
    if config.get("use_residual"):
        raise NotSupportedError(
            f"the module {path} of the folder adds its input (use_residual), which is not supported"
        )
    if (content := files.get(f"{path}/model.safetensors")) is not None:
        state = load_safetensors(content)
    elif (content := files.get(f"{path}/pytorch_model.bin")) is not None:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    else:
        raise NotSupportedError(f"the folder has no weights of its module {path}")
    weight, bias = state["linear.weight"], state.get("linear.bias")
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if name not in ("Tanh", "Identity", "ReLU", "GELU", "Sigmoid"):
        raise NotSupportedError(f"the module {path} of the folder has the activation {name}, which is not supported")
    activation = getattr(torch.nn, name)()

    def layer(vectors: torch.Tensor) -> torch.Tensor:
        place = vectors.device
        own = None if bias is None else bias.to(place, vectors.dtype)
        made: torch.Tensor = activation(torch.nn.functional.linear(vectors, weight.to(place, vectors.dtype), own))
        return made

    return layer


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
    "cls_token": _cls, "max_tokens": _max, "mean_tokens": _mean, "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean_tokens": _weighted_mean, "lasttoken": _last,
}  # fmt: skip
#: Short names, as `pooling_mode` of newer folders and the option `pooling` have them.
_MODES = {
    "cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "mean_sqrt_len": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens",
}  # fmt: skip


def _pooling(config: Mapping[str, Any]) -> Pooling:
    """Return the poolings of a module, their vectors one behind the other. Raises NotSupportedError."""
    mode = config.get("pooling_mode")
    if mode is None:
        switched = [name for name in _POOLINGS if config.get(f"pooling_mode_{name}")] or ["mean_tokens"]
    else:
        switched = [_MODES.get(each, each) for each in ([mode] if isinstance(mode, str) else mode)]
    unknown = [name for name in switched if name not in _POOLINGS]
    if unknown:
        raise NotSupportedError(f"the folder's pooling is {', '.join(unknown)}; known are {', '.join(_POOLINGS)}")
    chosen = [_POOLINGS[name] for name in switched]
    if len(chosen) == 1:
        return chosen[0]
    return lambda vectors, mask: torch.cat([pool(vectors, mask) for pool in chosen], 1)
