"""The answer to a question as a span of its context.

transformers' pipeline for this task ended with its version 5; the spans and their scores are those of that pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trims.core.errors import CallerError
from trims.manifests.task_options import check_options
from trims.manifests.tasks import QUESTION_ANSWERING
from trims_predictors.frameworks.transformers.answers import Answer
from trims_predictors.frameworks.transformers.requests import strings, texts_of
from trims_predictors.frameworks.transformers.tokens import LengthLimit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims_predictors.frameworks.transformers.answers import Parts
    from trims_predictors.frameworks.transformers.requests import Inputs

_MOST_TOKENS, _STRIDE, _MOST_ANSWER_TOKENS = 384, 128, 15


class QuestionAnswering:
    """Best span of a context for a question."""

    def __init__(self, parts: Parts) -> None:
        check_options(parts.options, QUESTION_ANSWERING)
        self._tokenizer, self._module = parts.tokenizer(), parts.module
        if not self._tokenizer.is_fast:
            raise CallerError("the task needs a tokenizer that states offsets: put tokenizer.json into the folder")
        options = {**parts.options, "truncation": True}  # long contexts are read in windows that overlap
        self._limit = LengthLimit(self._tokenizer, parts.module.config, options)
        self._window = min(self._limit.tokens or _MOST_TOKENS, _MOST_TOKENS)
        self._stride = min(parts.options.get("doc_stride", _STRIDE), self._window // 2)
        self._longest = parts.options.get("max_answer_len", _MOST_ANSWER_TOKENS)

    def __call__(self, inputs: Inputs) -> Answer:
        """Return answer, score and place in the context for each pair."""
        questions = texts_of("question", _needed(inputs, "question"))
        contexts = texts_of("context", _needed(inputs, "context"))
        inputs.check_all_read()
        if len(contexts) != len(questions):
            raise CallerError(f"the request brings {len(questions)} questions and {len(contexts)} contexts")
        self._limit.check_bytes([*questions, *contexts])
        for pair in zip(questions, contexts, strict=True):
            self._check(*pair)
        found = [self._one(*pair) for pair in zip(questions, contexts, strict=True)]
        texts = [each["answer"] for each in found]
        return Answer(
            lambda: {
                "answer": strings(texts),
                "score": np.array([each["score"] for each in found], dtype=np.float32),
                "start": np.array([each["start"] for each in found], dtype=np.int64),
                "end": np.array([each["end"] for each in found], dtype=np.int64),
            },
            lambda: found,
            lambda: strings(texts),
        )

    def _check(self, question: str, context: str) -> None:
        """Raise CallerError for a question that leaves no room for a part of its context."""
        if self._room(question) < 1 and (tokens := self._limit.count(question, context)) > self._window:
            raise CallerError(
                f"a question and its context have {tokens} tokens, the model takes {self._window} at once; a long "
                "context is read in parts, a question is not: shorten the question"
            )

    def _room(self, question: str) -> int:
        """Return how many tokens of a context fit beside a question."""
        # Not the tokens of a pair with "", which tokenizers take for a question alone.
        tokens = len(self._tokenizer(question, add_special_tokens=False, verbose=False)["input_ids"])
        return int(self._window - tokens - self._tokenizer.num_special_tokens_to_add(pair=True))

    def _one(self, question: str, context: str) -> dict[str, Any]:
        left = self._tokenizer.padding_side == "right"
        room = max(self._room(question), 0)
        tokens = self._tokenizer(
            *((question, context) if left else (context, question)),
            truncation="only_second" if left else "only_first",
            max_length=self._window,
            # Windows that overlap by all they hold would never reach the context's end.
            stride=self._stride if self._stride < room else room // 2,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            padding="max_length",
        )
        best: dict[str, Any] = {"score": 0.0, "start": 0, "end": 0, "answer": ""}
        for window in range(len(tokens["input_ids"])):
            found = self._in_window(tokens, window, 1 if left else 0)
            if found is not None and found[0] > best["score"]:
                score, start, end = found
                best = {"score": score, "start": start, "end": end, "answer": context[start:end]}
        return best

    def _in_window(self, tokens: Any, window: int, part: int) -> tuple[float, int, int] | None:
        """Return the score and the letters of the best span; None if the window has nothing of the context."""
        names = [name for name in self._tokenizer.model_input_names if name in tokens]
        batch = {name: torch.tensor([tokens[name][window]], device=self._module.device) for name in names}
        made = self._module(**batch)
        answerable = np.array([each == part for each in tokens.sequence_ids(window)])
        if not answerable.any():
            return None
        attended = np.array(tokens["attention_mask"][window], dtype=bool)
        starts = _probabilities(
            made.start_logits, answerable & attended, np.array(tokens["input_ids"][window]), self._tokenizer
        )
        ends = _probabilities(
            made.end_logits, answerable & attended, np.array(tokens["input_ids"][window]), self._tokenizer
        )
        spans = np.tril(np.triu(np.outer(starts, ends)), self._longest - 1)
        start, end = (int(each) for each in np.unravel_index(int(spans.argmax()), spans.shape))
        offsets: Sequence[tuple[int, int]] = tokens["offset_mapping"][window]
        first, last = _word(tokens, window, start, part), _word(tokens, window, end, part)
        return float(spans[start, end]), *(
            (first[0], last[1]) if first and last else (offsets[start][0], offsets[end][1])
        )


def _needed(inputs: Inputs, name: str) -> np.ndarray[Any, Any]:
    found = inputs.take(name)
    if found is None:
        raise CallerError("the task needs the inputs 'question' and 'context'")
    return found


def _word(tokens: Any, window: int, token: int, part: int) -> tuple[int, int] | None:
    """Return where the whole word of a token begins and ends, as answers are words."""
    try:
        word = tokens.token_to_word(window, token)
        return None if word is None else tuple(tokens.word_to_chars(window, word, sequence_index=part))
    except (KeyError, TypeError):
        return None


def _probabilities(
    logits: torch.Tensor, answerable: np.ndarray[Any, Any], ids: np.ndarray[Any, Any], tokenizer: Any
) -> np.ndarray[Any, Any]:
    """Return how likely each token of the context is, of shape (tokens,).

    The first token takes part in the normalization, as it stands for no answer, and is no answer itself.
    """
    values = logits[0].float().cpu().numpy()
    taking_part = answerable | (ids == tokenizer.cls_token_id) if tokenizer.cls_token_id is not None else answerable
    values = np.where(taking_part, values, -10000.0)
    exponents = np.exp(values - values.max())
    made: np.ndarray[Any, Any] = exponents / exponents.sum()
    return np.where(answerable, made, 0.0)
