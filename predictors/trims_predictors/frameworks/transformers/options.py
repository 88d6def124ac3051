"""Options of a Hugging Face model's manifest (`predictor.options`), checked when the model is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: Options of each task that reads text.
TEXT = ("max_length", "truncation", "max_text_bytes")
#: Option -> types of its values.
_TYPES: Mapping[str, tuple[type, ...]] = {
    "max_length": (int,), "truncation": (bool,), "max_text_bytes": (int,), "batch_size": (int,), "top_k": (int,),
    "function_to_apply": (str,), "aggregation_strategy": (str,), "hypothesis_template": (str,), "multi_label": (bool,),
    "max_new_tokens": (int,), "max_answer_len": (int,), "doc_stride": (int,), "normalize": (bool,), "pooling": (str,),
    "prompt": (str,),
}  # fmt: skip


def check_options(given: Mapping[str, Any], known: Collection[str], task: str) -> None:
    """Raise NotSupportedError for an option that the task has not, or of another type."""
    for name, value in given.items():
        if name not in known:
            raise NotSupportedError(
                f"predictor.options has {name!r}, which the task {task} does not know; known are {', '.join(known)}"
            )
        kinds = _TYPES[name]
        if type(value) not in kinds or (kinds == (int,) and value < 1):
            wanted = "a number from 1 up" if kinds == (int,) else f"a {kinds[0].__name__}"
            raise NotSupportedError(f"predictor.options.{name} is {value!r:.80}; write {wanted}")
