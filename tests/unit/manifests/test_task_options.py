"""Options of Hugging Face models: each task has some, and each option has its values."""

from __future__ import annotations

from typing import Any

import pytest

from trims.core.errors import NotSupportedError
from trims.manifests.task_options import OPTIONS, check_options
from trims.manifests.tasks import (
    EMBEDDING,
    FILL_MASK,
    GENERATION,
    SPEECH,
    TASKS,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    ZERO_SHOT,
)

#: Option -> a value that it has, and some that it has not.
VALUES: dict[str, tuple[Any, list[Any]]] = {
    **{
        name: (3, [0, -1, "3", True, 1.5, None, 1 << 31])
        for name in (
            "max_length", "max_text_bytes", "batch_size", "top_k", "max_new_tokens", "max_answer_len", "doc_stride",
        )
    },
    **{name: (False, [0, "no", None]) for name in ("truncation", "multi_label", "normalize")},
    "function_to_apply": ("SIGMOID", ["tanh", 1, None]),
    "aggregation_strategy": ("simple", ["best", 1]),
    "hypothesis_template": ("a {} text", ["a text", "{} and {}", "{0}", 3]),
    "pooling": ("cls_token", ["middle", 3, "CLS"]),
    "prompt": ("query", ["", 3]),
}  # fmt: skip


def test_every_task_has_its_row_and_every_option_its_values() -> None:
    assert OPTIONS.keys() == TASKS.keys()
    assert {name for names in OPTIONS.values() for name in names} == VALUES.keys()


@pytest.mark.parametrize("task", TASKS)
def test_an_option_of_the_task_is_taken_and_another_value_refused(task: str) -> None:
    check_options({name: VALUES[name][0] for name in OPTIONS[task]}, task)
    for name in OPTIONS[task]:
        for value in VALUES[name][1]:
            with pytest.raises(NotSupportedError, match=rf"predictor\.options\.{name} is .*; write "):
                check_options({name: value}, task)


@pytest.mark.parametrize(
    ("task", "name", "known"),
    [
        (TEXT_CLASSIFICATION, "nosuch", "known are max_length, .*top_k"), (TOKEN_CLASSIFICATION, "top_k", "known are"),
        (FILL_MASK, "pooling", "known are"), (GENERATION, "temperature", "known are"), (SPEECH, "top_k", "it has none"),
        (ZERO_SHOT, "top_k", "known are"),
    ],
)  # fmt: skip
def test_an_option_of_no_or_of_another_task_is_refused_with_those_there_are(task: str, name: str, known: str) -> None:
    with pytest.raises(NotSupportedError, match=f"{name!r}, which the task {task} does not know; {known}"):
        check_options({name: 1}, task)


def test_an_embedding_by_a_table_has_no_options_of_a_transformer() -> None:
    check_options({"normalize": True, "prompt": "query", "batch_size": 2}, EMBEDDING, is_static=True)
    for name in ("max_length", "truncation", "pooling"):
        with pytest.raises(NotSupportedError, match=f"'{name}', which a static embedding does not know; known are"):
            check_options({name: VALUES[name][0]}, EMBEDDING, is_static=True)
