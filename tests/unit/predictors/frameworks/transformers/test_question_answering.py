"""Answers to questions as spans of their contexts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trims.core.errors import CallerError

CONTEXT = "the cat sat on the mat in paris the city of france"


def texts(*values: str) -> np.ndarray[Any, Any]:
    return np.array([each.encode() for each in values], dtype=object)


def test_the_answer_is_the_span_of_the_highest_score(load: Any) -> None:
    """As a search over all spans finds it."""
    question = "where is the cat"
    with load("BertForQuestionAnswering") as predictor:
        found = predictor.predict({"question": texts(question), "context": texts(CONTEXT)})
        answering = predictor._answering
        tokenizer, module = answering._tokenizer, answering._module
        tokens = tokenizer(question, CONTEXT, return_tensors="pt", return_offsets_mapping=True)
        offsets = tokens.pop("offset_mapping")[0].tolist()
        with torch.inference_mode():
            made = module(**tokens)
        inside = [index for index, part in enumerate(tokens.sequence_ids()) if part == 1]
        chosen = [0, *inside]
        starts = dict(zip(chosen, made.start_logits[0][chosen].softmax(0).tolist(), strict=True))
        ends = dict(zip(chosen, made.end_logits[0][chosen].softmax(0).tolist(), strict=True))
        spans = [(starts[a] * ends[b], a, b) for a in inside for b in inside if a <= b < a + 15]
        score, first, last = max(spans)
    assert found["score"][0] == pytest.approx(score, rel=1e-4)
    assert (found["start"][0], found["end"][0]) == (offsets[first][0], offsets[last][1])
    assert found["answer"][0].decode() == CONTEXT[found["start"][0] : found["end"][0]]


def test_a_context_longer_than_the_model_takes_is_read_in_windows(load: Any) -> None:
    with load("DistilBertForQuestionAnswering") as predictor:
        long = f"{'dog ' * 200}{CONTEXT}"
        found = predictor.predict({"question": texts("what"), "context": texts(long)})
        assert found["answer"][0].decode() == long[found["start"][0] : found["end"][0]] != ""


def test_questions_and_contexts_come_in_pairs(load: Any) -> None:
    with load("BertForQuestionAnswering") as predictor:
        both = predictor.predict({"question": texts("what", "who"), "context": texts(CONTEXT, "the dog")})
        assert both["answer"].shape == (2,)
        for wrong in (
            {"question": texts("what")},
            {"context": texts("what")},
            {"question": texts("what", "who"), "context": texts(CONTEXT)},
            {"question": texts("what"), "context": texts(CONTEXT), "more": texts("x")},
        ):
            with pytest.raises(CallerError):
                predictor.predict(wrong)


@pytest.mark.parametrize("context", ["the cat sat", CONTEXT * 20])
def test_a_question_that_leaves_no_room_for_its_context_is_refused(load: Any, context: str) -> None:
    with load("BertForQuestionAnswering") as predictor:
        tokens = 57 + 3 + len(context.split())
        with pytest.raises(CallerError, match=rf"{tokens} tokens, the model takes 60"):
            predictor.predict({"question": texts("what", " ".join(["cat"] * 57)), "context": texts("the dog", context)})


@pytest.mark.parametrize("words", [25, 27, 28, 40, 55, 56])
def test_a_long_question_leaves_smaller_windows(load: Any, words: int) -> None:
    with load("BertForQuestionAnswering") as predictor:
        long = f"{'dog ' * 60}{CONTEXT}"
        found = predictor.predict({"question": texts(" ".join(["cat"] * words)), "context": texts(long)})
        assert found["answer"][0].decode() == long[found["start"][0] : found["end"][0]] != ""
