"""Items of answers of OpenAI's API."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from trims_predictors.endpoint.generate.openai_answers import CHAT_PART, COMPLETION_PART, write_items
from trims_predictors.endpoint.generate.openai_requests import CHAT, COMPLETIONS, EMBEDDINGS
from trims_predictors.tensors import Tensor, from_array, join_bytes

from trims.core.errors import CallerError


def texts(*values: str) -> Tensor:
    return Tensor("generated_text", "BYTES", (len(values),), join_bytes(each.encode() for each in values))


def items(form: str, facts: dict[str, Any], *tensors: Tensor) -> list[Any]:
    return [json.loads(each) for each in write_items(form, facts, tensors)]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_vectors_are_numbers_or_base64_of_fp32(dtype: str) -> None:
    vectors = from_array("embedding", np.array([[0.5, 1.0], [2.0, 4.0]], dtype))
    plain = items(EMBEDDINGS, {"base64": False}, vectors)
    assert [(each["index"], each["embedding"]) for each in plain] == [(0, [0.5, 1.0]), (1, [2.0, 4.0])]
    packed = items(EMBEDDINGS, {"base64": True}, vectors)
    assert np.frombuffer(base64.b64decode(packed[1]["embedding"]), "<f4").tolist() == [2.0, 4.0]


def test_a_vector_that_json_cannot_hold_is_refused_and_base64_holds_it() -> None:
    vectors = from_array("embedding", np.array([[0.5, np.nan]], np.float32))
    with pytest.raises(CallerError, match="base64"):
        items(EMBEDDINGS, {"base64": False}, vectors)
    assert len(items(EMBEDDINGS, {"base64": True}, vectors)) == 1


def test_each_text_is_a_choice_with_its_reason() -> None:
    found = items(COMPLETIONS, {}, texts("a", "b"), texts("stop", "length"))
    assert [(each["index"], each["text"], each["finish_reason"]) for each in found] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]
    (choice,) = items(CHAT, {}, texts("a"), texts("stop"))
    assert choice["message"] == {"role": "assistant", "content": "a", "refusal": None}


def test_parts_say_the_role_once_and_the_reason_at_the_end() -> None:
    first, last = {"first": True, "reason": None}, {"first": False, "reason": "stop"}
    assert items(CHAT_PART, first, texts("a"))[0]["delta"] == {"role": "assistant", "content": "a"}
    (end,) = items(CHAT_PART, last)
    assert (end["delta"], end["finish_reason"]) == ({}, "stop")
    (part,) = items(COMPLETION_PART, first, texts("a"))
    assert (part["text"], part["finish_reason"]) == ("a", None)
