"""Vectors of texts: hidden states of each token, and one embedding of each text as sentence-transformers makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trims.core.errors import NotSupportedError
from trims.image.static_embeddings import TABLE
from trims.manifests.sentence_modules import (
    POOLINGS,
    Module,
    check_modules,
    is_static,
    leaves_out_prompt,
    masks_words,
    prompt_of,
    read_modules,
    settings_in,
)
from trims.manifests.task_options import check_options
from trims.manifests.tasks import EMBEDDING, FEATURES
from trims_predictors.frameworks.transformers.answers import Answer
from trims_predictors.frameworks.transformers.sentence_layers import layers_of, pool_of
from trims_predictors.frameworks.transformers.tokens import LengthLimit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims_predictors.frameworks.transformers.answers import Parts
    from trims_predictors.frameworks.transformers.requests import Inputs

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
