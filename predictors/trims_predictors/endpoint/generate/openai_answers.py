"""Answers of OpenAI's API: the items of `data` and `choices`, in JSON, from the outputs of a model."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from trims.core.errors import CallerError
from trims_predictors.endpoint.generate.openai_requests import CHAT, COMPLETIONS, EMBEDDINGS
from trims_predictors.endpoint.json.requests import dump, to_json
from trims_predictors.tensors import to_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trims_predictors.tensors import Tensor

    Facts = Mapping[str, Any]

#: Forms of items beside those of the routes: a part of a streamed answer.
COMPLETION_PART, CHAT_PART = "completions part", "chat/completions part"


def write_items(form: str, facts: Facts, tensors: Sequence[Tensor]) -> Iterator[bytes]:
    """Yield the JSON of each item. Raises CallerError for values that JSON cannot hold.

    Args:
        form: A route, or one of COMPLETION_PART and CHAT_PART.
        facts: `base64` of embeddings; of a part whether it is the `first`, and the `reason` why the text ends.
        tensors: The vectors; the texts and why each ends; the text of a part.
    """
    if form == EMBEDDINGS:
        yield from map(dump, _embeddings(tensors[0], as_base64=facts["base64"]))
    elif form in (COMPLETIONS, CHAT):
        make = _text if form == COMPLETIONS else _message
        for index, (text, reason) in enumerate(zip(*map(to_json, tensors), strict=True)):
            yield dump(make(index, text, reason))
    else:
        text = "".join(to_json(tensors[0])) if tensors else ""
        yield dump(_text(0, text, facts["reason"]) if form == COMPLETION_PART else _delta(text, facts))


def _embeddings(tensor: Tensor, *, as_base64: bool) -> Iterator[dict[str, Any]]:
    for index, vector in enumerate(to_array(tensor)):
        numbers = vector.astype("<f4")
        if not as_base64 and not np.isfinite(numbers).all():
            raise CallerError(f"the embedding {index} holds NaN or infinity, which JSON lacks; ask for base64")
        made = base64.b64encode(numbers.tobytes()).decode() if as_base64 else numbers.tolist()
        yield {"object": "embedding", "index": index, "embedding": made}


def _text(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _message(index: int, text: str, reason: str | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": reason}


def _delta(text: str, facts: Facts) -> dict[str, Any]:
    first = facts["first"]
    delta = {**({"role": "assistant"} if first else {}), **({"content": text} if text or first else {})}
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": facts["reason"]}
