"""Text that continues a text or a conversation, or answers a text, token by token.

transformers' `generate` does the work, with a cache of its own for each request. Between two tokens the run looks
whether its client is still there, and whether one of its stop words has come.
"""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from transformers import StoppingCriteria

from trims.core.errors import CallerError
from trims.manifests.task_options import check_options
from trims_predictors.frameworks.transformers.answers import Answer
from trims_predictors.frameworks.transformers.requests import FULL_TEXT, TEXT_NAMES, number, strings, texts_of, truth
from trims_predictors.frameworks.transformers.tokens import LengthLimit, decoder_limit_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trims_predictors.api import Arrays
    from trims_predictors.frameworks.transformers.answers import Emit, Parts
    from trims_predictors.frameworks.transformers.requests import Inputs

TEXT_OUT = "generated_text"
_MESSAGES, _TOOLS, _STOP, _STREAM = "messages", "tools", "stop", "stream"
#: Parameters that a request may bring as inputs of one element -> the type of their values.
_PARAMETERS: Mapping[str, type] = {
    "max_new_tokens": int, "min_new_tokens": int, "temperature": float, "top_p": float, "top_k": int, "min_p": float,
    "do_sample": bool, "repetition_penalty": float, "num_beams": int, "seed": int, FULL_TEXT: bool,
}  # fmt: skip
#: Names that clients of other servers use -> ours.
_ALIASES = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
#: Least and most value of each parameter.
_RANGES: Mapping[str, tuple[float, float]] = {
    "max_new_tokens": (1, 1 << 20), "min_new_tokens": (0, 1 << 20), "temperature": (0, 100), "top_p": (1e-6, 1),
    "top_k": (0, 1 << 31), "min_p": (0, 1), "repetition_penalty": (1e-6, 100), "num_beams": (1, 64),
    "seed": (0, (1 << 63) - 1),
}  # fmt: skip
_SAMPLES = ("temperature", "top_p", "top_k", "min_p")
#: Tokens of an answer where neither request, manifest nor folder states a number.
_NEW_TOKENS = 256
#: Stop words of a request, and letters of one.
_MOST_STOPS, _MOST_STOP_LETTERS = 16, 256


class Made(NamedTuple):
    """Text that was generated for one text of a request.

    Attributes:
        reason: `stop` after a stop word or the model's own end, `length` after as many tokens as were allowed.
    """

    text: str
    reason: str
    prompt_tokens: int
    new_tokens: int


class Generation:
    """Texts that the model generates."""

    def __init__(self, parts: Parts) -> None:
        self.task = parts.described.task
        check_options(parts.options, self.task)
        self.tokenizer, self.module = parts.tokenizer(), parts.module
        self.answers_alone = bool(parts.module.config.is_encoder_decoder)
        self.limit = LengthLimit(self.tokenizer, parts.module.config, parts.options)
        self._decodes = decoder_limit_of(parts.module.config) if self.answers_alone else None
        self._most_new = parts.options.get("max_new_tokens")
        self._most_in_all = _max_length_of(parts)
        # Beside the number that each run states, it would have transformers warn at every request.
        parts.module.generation_config.max_length = type(parts.module.generation_config)().max_length

    def __call__(self, inputs: Inputs, emit: Emit = lambda _: True, *, streams: bool = False) -> Answer:
        """Return the text that each text of the request is continued with, or answered by.

        Args:
            emit: Takes each part of a text as it comes.
            streams: The request wants parts, which only one text can have.
        """
        asked = Asked(inputs, self)
        inputs.check_all_read()
        streams = streams or asked.streams
        if streams and (len(asked.prompts) != 1 or self._beams(asked) != 1):
            raise CallerError("a stream is for one text, without beams; ask for each text by itself")
        made = [
            self._generate(each, most, asked, emit, streams)
            for each, most in zip(asked.prompts, asked.most_new, strict=True)
        ]
        return Answer(
            lambda: {TEXT_OUT: strings([each.text for each in made])},
            lambda: [{TEXT_OUT: each.text} for each in made],
            lambda: strings([each.text for each in made]),
            lambda: _counts(made),
        )

    def _beams(self, asked: Asked) -> int:
        return int(asked.options.get("num_beams") or self.module.generation_config.num_beams or 1)

    def _generate(self, prompt: Prompt, most_new: int, asked: Asked, emit: Emit, streams: bool) -> Made:
        if streams and asked.echoes:
            emit({TEXT_OUT: strings([prompt.text])})
        watch = _Watch(self, prompt.tokens, asked.stops, emit, streams)
        ids = torch.tensor([prompt.ids], device=self.module.device)
        with _seeded(asked.seed, self.module.device):
            found = self.module.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **asked.options,
                max_new_tokens=most_new,
                num_return_sequences=1,  # whatever the folder says: a text has one answer
                stopping_criteria=[watch],
            )
        new = found[0] if self.answers_alone else found[0][prompt.tokens :]
        text = self.decode(new)
        if (stop := first_stop(text, asked.stops)) is not None:
            text = text[:stop]
        watch.finish(text)
        count = len(new) - (1 if self.answers_alone else 0)  # the decoder's first token is given
        ended = stop is not None or count < most_new or int(new[-1]) in self._ends()
        text = prompt.text + text if asked.full and not self.answers_alone else text
        return Made(text, "stop" if ended else "length", prompt.tokens, count)

    def _ends(self) -> Sequence[int]:
        stated = self.module.generation_config.eos_token_id
        return [] if stated is None else stated if isinstance(stated, list) else [stated]

    def decode(self, tokens: Sequence[int] | torch.Tensor) -> str:
        """Return the text of tokens, without those that have no text."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def most_new(self, prompt_tokens: int, asked: int | None) -> int:
        """Return how many tokens an answer may have. Raises CallerError for more than model or manifest allow."""
        wanted = asked or self._most_new or self._stated(prompt_tokens)
        if self._most_new is not None and wanted > self._most_new:
            raise CallerError(f"max_new_tokens is {wanted}; the manifest allows {self._most_new} (predictor.options)")
        if self.answers_alone:
            if asked is not None and self._decodes is not None and asked > self._decodes:
                raise CallerError(f"max_new_tokens is {asked}; the model's answers have up to {self._decodes} tokens")
            return wanted if self._decodes is None else min(wanted, self._decodes)
        if self.limit.tokens is None:
            return wanted
        room = self.limit.tokens - prompt_tokens
        if room < 1 or (asked is not None and asked > room):
            raise CallerError(
                f"the text has {prompt_tokens} tokens and the answer may have {wanted}; the model takes "
                f"{self.limit.tokens} together: shorten the text, or ask for fewer (max_new_tokens)"
            )
        return min(wanted, room)

    def _stated(self, prompt_tokens: int) -> int:
        """Return how many tokens the folder allows an answer, or our number where it says nothing."""
        stated = self.module.generation_config.max_new_tokens
        if stated is None and self._most_in_all is not None:
            given = 1 if self.answers_alone else prompt_tokens  # a decoder's first token is given, and counts
            if given >= self._most_in_all:
                raise CallerError(
                    f"the text has {prompt_tokens} tokens; the model's generation_config.json allows "
                    f"{self._most_in_all} together with the answer (max_length): shorten the text, or ask for "
                    "max_new_tokens"
                )
            return self._most_in_all - given
        return int(stated or _NEW_TOKENS)


@contextlib.contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Draw the random numbers of a seed inside, and go on afterwards as if none had been drawn.

    Args:
        seed: Seed to draw from; None to draw the numbers that come next.
        device: Device of the module: its numbers are drawn there.
    """
    if seed is None:
        yield
        return
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(seed)
        yield


def _max_length_of(parts: Parts) -> int | None:
    """Return `max_length` as the folder states it: versions of transformers have a default, which says nothing."""
    content = parts.described.files.get("generation_config.json")
    if content is None:
        return None
    stated = json.loads(content).get("max_length")
    return None if stated is None else int(stated)


def _counts(made: Sequence[Made]) -> Arrays:
    return {
        "finish_reason": strings([each.reason for each in made]),
        "prompt_tokens": np.array([each.prompt_tokens for each in made], dtype=np.int64),
        "completion_tokens": np.array([each.new_tokens for each in made], dtype=np.int64),
    }


class Prompt(NamedTuple):
    """One text to continue, with its tokens."""

    text: str
    ids: list[int]

    @property
    def tokens(self) -> int:
        """Return how many tokens it has."""
        return len(self.ids)


class Asked:
    """Texts and parameters of one request.

    Attributes:
        options: Arguments for `generate` of transformers.
        stops: Words that end an answer, and are no part of it.
        most_new: Tokens that the answer to each prompt may have.
        seed: Seed of the random numbers; None for another one each time.
        full: Answers begin with the text of the request.
        echoes: Whether its parts begin with that text, too.
        streams: The request says that it wants parts.
    """

    def __init__(self, inputs: Inputs, model: Generation) -> None:
        given = _parameters(inputs)
        stops = inputs.take(_STOP)
        self.stops = [] if stops is None else _stops(texts_of(_STOP, stops))
        flag = inputs.take(_STREAM)
        self.streams = flag is not None and truth(_STREAM, flag)
        self.seed = given.pop("seed", None)
        is_chat = inputs.has(_MESSAGES)
        stated = given.pop(FULL_TEXT, None)
        if stated and model.answers_alone:
            raise CallerError(f"{FULL_TEXT} (echo) is for models that continue a text, and this one answers it")
        # As transformers' pipeline: a continuation comes with its text. Parts have it where it is asked for.
        self.full, self.echoes = not is_chat if stated is None else stated, bool(stated)
        self.prompts = [_chat(inputs, model)] if is_chat else _prompts(inputs, model)
        if any(name in given for name in _SAMPLES) and "do_sample" not in given:
            given["do_sample"] = given.get("temperature") != 0
        if given.get("temperature") == 0:
            given["do_sample"] = False
            del given["temperature"]
        most = given.pop("max_new_tokens", None)
        self.most_new = [model.most_new(each.tokens, most) for each in self.prompts]
        if model.tokenizer.pad_token_id is None and model.module.generation_config.pad_token_id is None:
            given["pad_token_id"] = model.tokenizer.eos_token_id
        self.options: Mapping[str, Any] = given


def _prompts(inputs: Inputs, model: Generation) -> list[Prompt]:
    texts = inputs.texts(TEXT_NAMES)
    model.limit.check(texts)
    return [Prompt(each, model.tokenizer(each, **model.limit.arguments())["input_ids"]) for each in texts]


def _chat(inputs: Inputs, model: Generation) -> Prompt:
    """Return the text of a conversation by the tokenizer's template. Raises CallerError."""
    if not getattr(model.tokenizer, "chat_template", None):
        raise CallerError("the model's tokenizer has no chat template; send a text (/v1/completions)")
    messages = _json(inputs, _MESSAGES)
    tools = _json(inputs, _TOOLS) if inputs.has(_TOOLS) else None
    apply = partial(model.tokenizer.apply_chat_template, messages, add_generation_prompt=True, tokenize=False)
    try:
        text = apply(tools=tools)
        is_read = not tools or text != apply()
    except Exception as error:  # a template is a program: it refuses conversations in its own ways
        raise CallerError(f"the chat template refuses the messages: {error}"[:2000]) from error
    if not is_read:
        raise CallerError("the model's chat template has no place for 'tools'; leave them out")
    model.limit.check([text])
    return Prompt(text, model.tokenizer(text, add_special_tokens=False)["input_ids"])


def _json(inputs: Inputs, name: str) -> Any:
    try:
        return json.loads(inputs.text(name) or "")
    except (ValueError, RecursionError) as error:
        raise CallerError(f"the input {name!r} is no JSON: {error}") from error


def _parameters(inputs: Inputs) -> dict[str, Any]:
    """Return the parameters that a request brings. Raises CallerError for one that is out of its range."""
    given: dict[str, Any] = {}
    for brought, name in {**{each: each for each in _PARAMETERS}, **_ALIASES}.items():
        array = inputs.take(brought)
        if array is None:
            continue
        kind = _PARAMETERS[name]
        value = truth(brought, array) if kind is bool else number(brought, array)
        least, most = _RANGES.get(name, (0, 1))
        if not least <= value <= most or (kind is int and int(value) != value):
            whole = "a whole number" if kind is int else "a number"
            names = " or ".join([brought, *(each for each, ours in _ALIASES.items() if ours == brought)])
            raise CallerError(f"the parameter {names} is {value}; {whole} from {least:g} to {most:g} is needed")
        if given.setdefault(name, kind(value)) != value:
            raise CallerError(f"{brought!r} is {value} and another name of the same parameter {given[name]}; send one")
    return given


def _stops(words: Sequence[str]) -> list[str]:
    if len(words) > _MOST_STOPS or any(not 0 < len(each) <= _MOST_STOP_LETTERS for each in words):
        raise CallerError(f"'stop' takes up to {_MOST_STOPS} words of 1 to {_MOST_STOP_LETTERS} letters")
    return list(words)


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return where the first of the stop words begins; None if none is there."""
    return min((at for each in stops if (at := text.find(each)) >= 0), default=None)


class _Watch(StoppingCriteria):  # type: ignore[misc]  # transformers is not followed
    """Looks at a run after each token: ends it with its client or at a stop word, and sends what is new.

    Args:
        model: Decodes.
        prompt_tokens: Tokens before the first new one, of which none is a decoder's.
        stops: Words that end the answer.
        emit: Takes parts.
        streams: Parts are wanted.
    """

    def __init__(self, model: Generation, prompt_tokens: int, stops: Sequence[str], emit: Emit, streams: bool) -> None:
        self._decode = model.decode
        self._at = 1 if model.answers_alone else prompt_tokens
        self._stops = stops
        self._held = max(map(len, stops), default=1) - 1
        self._emit = emit
        self._streams = streams
        #: Text so far, how much of it was sent, and tokens whose text may still change with the next one.
        self._text, self._sent, self._open = "", 0, 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **others: Any) -> torch.Tensor:
        """Return for each row whether it ends here."""
        del scores, others
        ends = not self._emit(None)
        if not ends and (self._streams or self._stops) and len(input_ids) == 1:
            self._read(input_ids[0].tolist())
            ends = first_stop(self._text, self._stops) is not None
            if self._streams and not ends:
                ends = not self._send(len(self._text) - self._held)
        return torch.full((len(input_ids),), ends, dtype=torch.bool, device=input_ids.device)

    def _read(self, tokens: Sequence[int]) -> None:
        """Add the text of new tokens, unless the last of them ends in the middle of a letter.

        Decoded are the tokens of the last part together with the new ones, because a token's text depends on the one
        before it (as in text-generation-inference of Hugging Face).
        """
        read = self._open or self._at
        before = self._decode(tokens[self._at : read])
        now = self._decode(tokens[self._at :])
        if len(now) > len(before) and not now.endswith("\ufffd"):
            self._text += now[len(before) :]
            self._at, self._open = read, len(tokens)

    def _send(self, end: int) -> bool:
        if end <= self._sent:
            return True
        part, self._sent = self._text[self._sent : end], end
        return self._emit({TEXT_OUT: strings([part])})

    def finish(self, text: str) -> None:
        """Send what is left of the whole text."""
        if self._streams and len(text) > self._sent:
            self._text = text
            self._send(len(text))
