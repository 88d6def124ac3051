"""The step over text: a tokenizer of the `tokenizers` library, which is imported when a model with it loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trims.core.errors import NotSupportedError
from trims.process.packages import install_words
from trims_predictors.transforms.base import RefusedError
from trims_predictors.transforms.files import locate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims_predictors.transforms.base import Array, Operation

#: Names of the outputs in the manifest -> their names in the library.
_PARTS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
#: Names that padding has in tokenizers which do not say theirs.

_PADDING = ("[PAD]", "<pad>")


def tokenize(fields: Mapping[str, Any], folder: str) -> Operation:
    """BYTES [n], UTF-8, to INT64 [n, length] for each of the outputs."""
    tokenizer = _opened(locate(fields["tokenizer"], folder))
    _set_padding(tokenizer, fields)
    tokenizer.no_truncation()
    special = tokenizer.num_special_tokens_to_add(False) if fields["special_tokens"] else 0
    if fields["max_length"] < special:
        raise NotSupportedError(
            f"the tokenizer adds {special} special tokens to each text, more than the `max_length` of "
            f"{fields['max_length']}; they count, so set it higher, or `special_tokens: false`"
        )
    if fields["truncation"]:
        tokenizer.enable_truncation(fields["max_length"])

    def work(array: Array) -> tuple[Array, ...]:
        encoded = tokenizer.encode_batch(_texts(array), add_special_tokens=fields["special_tokens"])
        longest = len(encoded[0].ids)
        if longest > fields["max_length"]:
            counted = ", special ones among them" if special else ""
            raise RefusedError(
                f"it has a text of {longest} tokens{counted}; {fields['max_length']} are the most: shorten it"
            )
        return tuple(
            np.array([getattr(each, _PARTS[name]) for each in encoded], np.int64).reshape(len(encoded), longest)
            for name in fields["outputs"]
        )

    return work


def _opened(path: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise NotSupportedError(
            f"tokenize needs tokenizers in the predictor's environment: {error}; {install_words('trims[steps]')}"
        ) from error
    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # the library raises no class of its own
        raise NotSupportedError(
            f"the tokenizer {path} cannot be read: {error}; it must be a tokenizer.json of the library tokenizers"
        ) from error


def _set_padding(tokenizer: Any, fields: Mapping[str, Any]) -> None:
    """Fill texts up as the file says, or as the manifest does, to a length of this step."""
    stated = dict(tokenizer.padding or {})
    wanted = [fields["pad_token"]] if fields["pad_token"] else [stated.get("pad_token", ""), *_PADDING]
    token = next((each for each in wanted if each and tokenizer.token_to_id(each) is not None), None)
    if token is None:
        raise NotSupportedError(
            f"the tokenizer has none of {', '.join(filter(None, wanted))} to fill shorter texts up with; the step "
            "`tokenize` needs the `pad_token` of the model"
        )
    tokenizer.enable_padding(
        direction=stated.get("direction", "right"),
        pad_id=tokenizer.token_to_id(token),
        pad_type_id=stated.get("pad_type_id", 0),
        pad_token=token,
        length=fields["max_length"] if fields["padding"] == "max_length" else None,
    )


def _texts(array: Array) -> list[str]:
    if array.dtype != object or array.ndim != 1 or not array.size:
        raise RefusedError(f"its shape is {list(array.shape)}; it must be text, BYTES of shape [n] with n from 1 up")
    try:
        return [each if isinstance(each, str) else each.decode() for each in array]
    except (UnicodeDecodeError, AttributeError) as error:
        raise RefusedError(f"it has an element that is no UTF-8 text: {error}") from error
