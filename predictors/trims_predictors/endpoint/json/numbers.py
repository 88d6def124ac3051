"""Numbers of a request's JSON as an array, with none that changes on the way.

Python reads `1e400` as infinity, and numpy takes whole numbers beyond 64 bits for objects. Both are refused here, or
read as what they are. `Infinity`, which Python reads in JSON, too, is infinity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError
from trims_predictors.endpoint.json.text import Literal
from trims_predictors.tensors import cannot_hold, cast, numpy_dtype

if TYPE_CHECKING:
    import numpy as np

#: Kinds of numpy's types whose values each data type takes from JSON; whole numbers for all others.
_KINDS = {"BOOL": "b", "BYTES": "", "FP16": "iuf", "BF16": "iuf", "FP32": "iuf", "FP64": "iuf"}
#: Words for numpy's kinds that are no numbers.
_WORDS = {"U": "text", "O": "values that are no numbers"}


def numbers(name: str, dtype: str, data: list[Any]) -> np.ndarray[Any, Any]:
    """The numbers of an input, as its data type has them. Raises CallerError naming the input, and what is wrong.

    Args:
        data: Lists in one another.
    """
    import numpy as np

    try:
        values = np.array(data or [], dtype=None if data else numpy_dtype(dtype))
    except (ValueError, TypeError, OverflowError) as error:
        raise CallerError(f"the 'data' of the input {name!r} is not a regular array of numbers: {error}") from error
    kinds = _KINDS.get(dtype, "iu")
    if values.dtype.kind == "O" or (values.dtype.kind == "f" and "f" not in kinds):
        values = _exact(name, dtype, values, flat(data))
    elif values.dtype.kind == "f" and np.isinf(values).any():
        _check_literals(name, dtype, flat(data))
    if values.size and values.dtype.kind not in kinds:
        held = _WORDS.get(values.dtype.kind, str(values.dtype))
        raise CallerError(f"the 'data' of the input {name!r} holds {held}; {dtype} is expected")
    return cast(name, dtype, values)


def _exact(name: str, dtype: str, guess: np.ndarray[Any, Any], data: list[Any]) -> np.ndarray[Any, Any]:
    """The values of what numpy takes for objects, or for fractions because some need 64 bits; `guess` for others."""
    import numpy as np

    whole = all(type(each) is int for each in data)
    fractions = "f" in _KINDS.get(dtype, "")
    if dtype == "BOOL" or not (whole or (fractions and all(type(each) in (int, float, Literal) for each in data))):
        return guess
    _check_literals(name, dtype, data)
    try:
        return np.array(
            [float(each) for each in data] if fractions else data, np.float64 if fractions else dtype.lower()
        )
    except OverflowError:
        raise cannot_hold(name, dtype) from None


def _check_literals(name: str, dtype: str, data: list[Any]) -> None:
    """Raise CallerError for a number that became infinity when it was read."""
    for each in data:
        if type(each) is float and each in (float("inf"), float("-inf")):
            raise cannot_hold(name, dtype)


def flat(data: list[Any]) -> list[Any]:
    """The elements of nested lists, in order; without recursion, because a client chooses the depth."""
    found, left = [], list(reversed(data))
    while left:
        each = left.pop()
        if isinstance(each, list):
            left.extend(reversed(each))
        else:
            found.append(each)
    return found
