"""Options of Hugging Face models (`predictor.options`): which each task has, and their values. Standard library only.

Registration, `trims validate` and the predictors check by this one table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import NotSupportedError
from trims.manifests.sentence_modules import POOLING_MODES, POOLING_NAMES
from trims.manifests.tasks import (
    EMBEDDING,
    FEATURES,
    FILL_MASK,
    GENERATION,
    IMAGES,
    QUESTION_ANSWERING,
    SPEECH,
    TEXT_CLASSIFICATION,
    TEXT_TO_TEXT,
    TOKEN_CLASSIFICATION,
    ZERO_SHOT,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TEXT = ("max_length", "truncation", "max_text_bytes")
#: Task -> its options.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    TEXT_CLASSIFICATION: (*_TEXT, "batch_size", "top_k", "function_to_apply"),
    TOKEN_CLASSIFICATION: (*_TEXT, "batch_size", "aggregation_strategy"),
    FILL_MASK: (*_TEXT, "batch_size", "top_k"),
    QUESTION_ANSWERING: (*_TEXT, "max_answer_len", "doc_stride"),
    ZERO_SHOT: (*_TEXT, "batch_size", "hypothesis_template", "multi_label"),
    FEATURES: (*_TEXT, "batch_size"),
    EMBEDDING: (*_TEXT, "batch_size", "normalize", "pooling", "prompt"),
    GENERATION: (*_TEXT, "max_new_tokens"),
    TEXT_TO_TEXT: (*_TEXT, "max_new_tokens"),
    IMAGES: ("top_k", "batch_size"),
    SPEECH: (),
}
#: Options of embeddings that a table of tokens makes: it cuts no text, and has one pooling.
_STATIC = tuple(each for each in OPTIONS[EMBEDDING] if each not in ("max_length", "truncation", "pooling"))
_MOST = (1 << 31) - 1
#: Form of a template of hypotheses, in words.
TEMPLATE = "{} once, for the label, and no other braces"


class _Value(NamedTuple):
    """Values that an option may have, as a check and in words."""

    holds: Callable[[Any], bool]
    wanted: str


def _choice(*names: str) -> _Value:
    return _Value(lambda value: isinstance(value, str) and value.lower() in names, f"one of {', '.join(names)}")


def is_template(text: str) -> bool:
    """Return whether a text has one place for a label, and nothing else that formats."""
    return text.count("{}") == text.count("{") == text.count("}") == 1


_COUNT = _Value(lambda value: type(value) is int and 1 <= value <= _MOST, f"a whole number from 1 to {_MOST}")
_FLAG = _Value(lambda value: type(value) is bool, "true or false")
_VALUES: Mapping[str, _Value] = {
    **dict.fromkeys(
        (
            "max_length", "max_text_bytes", "batch_size", "top_k", "max_new_tokens", "max_answer_len", "doc_stride",
        ),
        _COUNT,
    ),
    **dict.fromkeys(("truncation", "multi_label", "normalize"), _FLAG),
    "function_to_apply": _choice("none", "sigmoid", "softmax"),
    "aggregation_strategy": _choice("none", "simple", "first", "average", "max"),
    "hypothesis_template": _Value(
        lambda value: isinstance(value, str) and is_template(value), TEMPLATE
    ),
    "pooling": _Value(
        lambda value: isinstance(value, str) and value in (*POOLING_MODES, *POOLING_NAMES),
        f"one of {', '.join(POOLING_MODES)}",
    ),
    "prompt": _Value(lambda value: isinstance(value, str) and value != "", "the name of one of the folder's prompts"),
}  # fmt: skip


def check_options(given: Mapping[str, Any], task: str, *, is_static: bool = False) -> None:
    """Raise NotSupportedError for an option that a task has not, or a value that the option cannot have.

    Args:
        is_static: Whether the embeddings are made by a table of tokens, and by no transformer.
    """
    known = _STATIC if is_static else OPTIONS[task]
    what = "a static embedding" if is_static else f"the task {task}"
    for name, value in given.items():
        if name not in known:
            listed = f"known are {', '.join(known)}" if known else "it has none"
            raise NotSupportedError(f"predictor.options has {name!r:.80}, which {what} does not know; {listed}")
        allowed = _VALUES[name]
        if not allowed.holds(value):
            raise NotSupportedError(f"predictor.options.{name} is {value!r:.80}; write {allowed.wanted}")
