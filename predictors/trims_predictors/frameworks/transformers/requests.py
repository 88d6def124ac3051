"""Inputs of requests for Hugging Face models: texts, pictures and sound, under the names that clients use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trims.core.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Collection

    from trims_predictors.api import Arrays

#: Names of the text among several inputs: of trims, of MLServer's and of KServe's runtimes, of Triton's generation.
TEXT_NAMES = ("text", "args", "array_inputs", "inputs", "text_inputs", "text_input", "prompt", "input", "sequences")

#: Input of generation that says whether an answer begins with its text.
FULL_TEXT = "return_full_text"


class Inputs:
    """Arrays of one request, each of which must be read."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = dict(arrays)
        self._names = tuple(arrays)

    def main(self, names: Collection[str], others: Collection[str] = ()) -> tuple[str, np.ndarray[Any, Any]]:
        """Return name and array of the main input: the one of these names, else the only one that has no other role.

        Raises CallerError if there is none, or several may be meant.
        """
        named = [name for name in names if name in self._arrays]
        free = named or [name for name in self._arrays if name not in others]
        if len(free) != 1:
            brings = ", ".join(self._names) or "nothing"
            what = "several of them" if len(free) > 1 else "none of them"
            raise CallerError(
                f"the request brings {brings}; one input named {' or '.join(names)} is needed, not {what}"
            )
        return free[0], self._arrays.pop(free[0])

    def texts(self, names: Collection[str] = TEXT_NAMES, others: Collection[str] = ()) -> list[str]:
        """Return the texts of the main input, one for each row."""
        return texts_of(*self.main(names, others))

    def has(self, name: str) -> bool:
        """Return whether the request brings an input that was not read yet."""
        return name in self._arrays

    def take(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return another input; None if the request does not bring it."""
        return self._arrays.pop(name, None)

    def text(self, name: str) -> str | None:
        """Return the one text of another input; None if the request does not bring it."""
        found = self.take(name)
        return None if found is None else single(name, texts_of(name, found))

    def check_all_read(self) -> None:
        """Raise CallerError for an input that nothing has read."""
        for name in self._arrays:
            raise CallerError(
                f"the model has no input {name!r} for this task; the request brings {', '.join(self._names)}"
            )


def single(name: str, values: list[Any]) -> Any:
    """Return the only value. Raises CallerError for none and several."""
    if len(values) != 1:
        raise CallerError(f"the input {name!r} has {len(values)} elements; one is needed")
    return values[0]


def texts_of(name: str, array: np.ndarray[Any, Any]) -> list[str]:
    """Return the elements of a BYTES tensor as texts. Raises CallerError for another type, shape or encoding."""
    if array.dtype.kind not in "OSU":
        raise CallerError(f"the input {name!r} has the type {array.dtype}; text is needed (BYTES)")
    if any(length != 1 for length in array.shape[1:]):
        raise CallerError(f"the input {name!r} has the shape {list(array.shape)}; one text for each row is needed")
    return [_text(name, each) for each in array.ravel()]


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise CallerError(f"the input {name!r} has an element that is not UTF-8: {error}") from error


def number(name: str, array: np.ndarray[Any, Any]) -> int | float:
    """Return the one number of an input. Raises CallerError, also for a truth value."""
    if array.dtype.kind not in "iuf" or array.size != 1:
        raise CallerError(f"the input {name!r} is {array.dtype} of shape {list(array.shape)}; one number is needed")
    found: int | float = array.ravel()[0].item()
    return found


def truth(name: str, array: np.ndarray[Any, Any]) -> bool:
    """Return the one truth value of an input. Raises CallerError, also for a number."""
    if array.dtype.kind != "b" or array.size != 1:
        raise CallerError(
            f"the input {name!r} is {array.dtype} of shape {list(array.shape)}; one truth value is needed (BOOL)"
        )
    return bool(array.ravel()[0])


def strings(values: list[str] | list[list[str]]) -> np.ndarray[Any, Any]:
    """Return texts as an array of objects, of one or two dimensions, which becomes a BYTES tensor."""
    made = np.empty(len(values), dtype=object) if not values or isinstance(values[0], str) else None
    if made is not None:
        made[:] = [str(each).encode() for each in values]
        return made
    rows = [[each.encode() for each in row] for row in values]
    table = np.empty((len(rows), max(map(len, rows))), dtype=object)
    table[:] = b""
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table


def padded(rows: list[list[Any]], dtype: Any, filler: Any) -> np.ndarray[Any, Any]:
    """Return rows of different lengths as one array, filled up at their ends."""
    table = np.full((len(rows), max(map(len, rows), default=0)), filler, dtype=dtype)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table
