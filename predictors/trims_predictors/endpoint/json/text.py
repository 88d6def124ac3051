"""JSON of requests: read once it is known to be neither deeper nor with longer numbers than a request may have."""

from __future__ import annotations

import json
import re
from typing import Any

from trims.core.errors import CallerError
from trims.manifests.serving import MOST_DIMENSIONS

#: Bytes of JSON that are read or written where they are. The worst content of so many takes about 1 ms, and the event
#: loop stands still meanwhile. More goes to another process (`json_workers`).
SMALL_BYTES = 64 << 10
#: Depth of nested objects and lists, at most: those of the protocol round a tensor with the most dimensions allowed.
MOST_DEPTH = MOST_DIMENSIONS + 8
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
#: Also one without its end. Nothing in it can match in two ways, so it takes no longer than the text is long.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
#: Brackets that are looked at at once.
_PIECE_BYTES = 1 << 20


class Literal(float):
    """`NaN`, `Infinity` or `-Infinity` as it stands in JSON. Other infinities were numbers too large for Python."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise CallerError(f"the request has {twice!r:.80} twice in one object; keep one")
    return made


_DECODER = json.JSONDecoder(parse_constant=Literal, object_pairs_hook=_object)


def load_json(text: bytes) -> Any:
    """Return the value of a JSON text. Raises CallerError, also for one that is too deep."""
    check_depth(text)
    try:
        return _DECODER.decode(text.decode(json.detect_encoding(text), "surrogatepass"))  # as json.loads does
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise CallerError("the request has a whole number of more digits than any data type holds") from error
        raise CallerError(f"the request is not JSON: {error}") from error


def check_depth(text: bytes) -> None:
    """Raise CallerError if objects and lists lie in one another more than MOST_DEPTH times."""
    brackets = text.translate(None, _NO_BRACKETS)
    if len(brackets) <= MOST_DEPTH:
        return
    if _deepest(brackets) > MOST_DEPTH and _deepest(_STRING.sub(b"", text).translate(None, _NO_BRACKETS)) > MOST_DEPTH:
        raise _too_deep()


def _deepest(brackets: bytes) -> int:
    import numpy as np

    step = np.zeros(256, np.int8)
    step[list(b"[{")], step[list(b"]}")] = 1, -1
    depth = deepest = 0
    for at in range(0, len(brackets), _PIECE_BYTES):
        depths = depth + np.cumsum(step[np.frombuffer(brackets[at : at + _PIECE_BYTES], np.uint8)], dtype=np.int64)
        depth, deepest = int(depths[-1]), max(deepest, int(depths.max()))
    return deepest


def _too_deep() -> CallerError:
    return CallerError(
        f"the JSON of the request has lists in one another more than {MOST_DEPTH} times; a tensor has at most "
        f"{MOST_DIMENSIONS} dimensions"
    )
