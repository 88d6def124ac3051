"""Text that continues a text, or answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trims.core.errors import CallerError
from trims_predictors.frameworks.transformers.answers import Answer
from trims_predictors.frameworks.transformers.options import TEXT, check_options
from trims_predictors.frameworks.transformers.requests import number, strings, texts_of
from trims_predictors.frameworks.transformers.tokens import LengthLimit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims_predictors.frameworks.transformers.answers import Parts
    from trims_predictors.frameworks.transformers.requests import Inputs

#: Parameters that a request may bring as inputs of one element -> the type of their values.
_PARAMETERS: Mapping[str, type] = {
    "max_new_tokens": int, "min_new_tokens": int, "temperature": float, "top_p": float, "top_k": int, "do_sample": bool,
    "repetition_penalty": float, "num_beams": int, "seed": int, "return_full_text": bool,
}  # fmt: skip
_STOP = "stop"
#: Tokens of an answer where neither request, manifest nor folder states a number.
_NEW_TOKENS = 256
_MOST_NEW_TOKENS = 1 << 20


class Generation:
    """Texts that the model generates."""

    def __init__(self, parts: Parts) -> None:
        self.task = parts.described.task
        check_options(parts.options, (*TEXT, "max_new_tokens"), self.task)
        self.tokenizer, self.module = parts.tokenizer(), parts.module
        self.limit = LengthLimit(self.tokenizer, parts.module.config, parts.options)
        self._most_new = parts.options.get("max_new_tokens")

    def __call__(self, inputs: Inputs) -> Answer:
        """Return the text that each text of the request is continued with, or answered by."""
        given = Asked(inputs, self)
        inputs.check_all_read()
        made = [self.generate(text, given) for text in given.texts]
        return Answer(
            lambda: {"generated_text": strings(made)},
            lambda: [{"generated_text": each} for each in made],
            lambda: strings(made),
        )

    def generate(self, text: str, asked: Asked) -> str:
        """Return the answer to one text."""
        tokens = self.tokenizer(text, return_tensors="pt", **self.limit.arguments()).to(self.module.device)
        tokens.pop("token_type_ids", None)
        if asked.seed is not None:
            torch.manual_seed(asked.seed)
        found = self.module.generate(**tokens, **asked.options, tokenizer=self.tokenizer)[0]
        if self.module.config.is_encoder_decoder:
            return self.decode(found)
        new = self.decode(found[tokens["input_ids"].shape[1] :])
        return text + new if asked.full else new

    def decode(self, tokens: torch.Tensor) -> str:
        """Return the text of tokens, without those that have no text."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def most_new(self, prompt_tokens: int, asked: int | None) -> int:
        """Return how many tokens an answer may have. Raises CallerError for more than the model or the manifest takes."""
        stated = self.module.generation_config.max_new_tokens
        wanted = asked or self._most_new or stated or _NEW_TOKENS
        if self._most_new is not None and wanted > self._most_new:
            raise CallerError(f"max_new_tokens is {wanted}; the manifest allows {self._most_new} (predictor.options)")
        if self.limit.tokens is None or self.module.config.is_encoder_decoder:
            return wanted
        room = self.limit.tokens - prompt_tokens
        if room < 1 or (asked is not None and asked > room):
            raise CallerError(
                f"the text has {prompt_tokens} tokens and the answer may have {wanted}; the model takes {self.limit.tokens} "
                "together: shorten the text, or ask for fewer (max_new_tokens)"
            )
        return min(wanted, room)


class Asked:
    """Texts and parameters of one request.

    Attributes:
        texts: To continue.
        options: For `generate` of transformers.
        seed: Of the random numbers; None for another one each time.
        full: Answers begin with the text of the request.
    """

    def __init__(self, inputs: Inputs, model: Generation) -> None:
        self.texts = inputs.texts(others=(*_PARAMETERS, _STOP))
        found = {name: _value(inputs, name, kind) for name, kind in _PARAMETERS.items()}
        given = {name: value for name, value in found.items() if value is not None}
        stops = inputs.take(_STOP)
        self.seed = given.pop("seed", None)
        # As transformers' pipelines: a continuation comes with its text.
        self.full = bool(given.pop("return_full_text", True))
        model.limit.check(self.texts)
        longest = max((len(model.tokenizer(each)["input_ids"]) for each in self.texts), default=0)
        _check_sampling(given)
        if ("temperature" in given or "top_p" in given or "top_k" in given) and "do_sample" not in given:
            given["do_sample"] = True
        if given.get("temperature") == 0:
            given.update(do_sample=False)
            del given["temperature"]
        given["max_new_tokens"] = model.most_new(longest, given.get("max_new_tokens"))
        if stops is not None:
            given["stop_strings"] = _stops(texts_of(_STOP, stops))
        if model.tokenizer.pad_token_id is None and model.module.generation_config.pad_token_id is None:
            given["pad_token_id"] = model.tokenizer.eos_token_id
        self.options: Mapping[str, Any] = given


def _value(inputs: Inputs, name: str, kind: type) -> Any:
    array = inputs.take(name)
    if array is None:
        return None
    value = number(name, array)
    if kind is int and int(value) != value:
        raise CallerError(f"the input {name!r} is {value}; a whole number is needed")
    return kind(value)


def _check_sampling(given: Mapping[str, Any]) -> None:
    """Raise CallerError for a parameter that is out of range."""
    wrong = {
        "max_new_tokens": lambda value: not 0 < value <= _MOST_NEW_TOKENS,
        "min_new_tokens": lambda value: value < 0,
        "temperature": lambda value: not 0 <= value <= 100,
        "top_p": lambda value: not 0 < value <= 1,
        "top_k": lambda value: value < 0,
        "repetition_penalty": lambda value: not 0 < value <= 100,
        "num_beams": lambda value: not 0 < value <= 64,
    }
    for name, value in given.items():
        if name in wrong and wrong[name](value):
            raise CallerError(f"the parameter {name} is {value}, which is out of range")


def _stops(words: Sequence[str]) -> list[str]:
    if any(not each for each in words):
        raise CallerError("the input 'stop' has an empty text")
    return list(words)
