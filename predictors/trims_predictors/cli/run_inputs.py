"""Inputs of `trims run`, as a user types them, turned into tensors.

An input is a file or a value, alone or after `name=`. A `.json` file or a text that begins with `{` is a whole request
of the Open Inference Protocol. A `.npy` file is one tensor, a `.npz` file several; any other file is one BYTES element,
as is text. Numbers and lists of numbers are JSON.
"""

from __future__ import annotations

import json
import os
import re
from math import prod
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError
from trims.manifests.serving import ANY, ITEM_BYTES, TensorType
from trims_predictors.endpoint.json.requests import parse_request
from trims_predictors.tensors import Tensor, cast, from_array, join_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

#: An argument that ends so and is no file is a slip of the pen, and no text.
_SUFFIXES = (".json", ".npy", ".npz", ".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".txt", ".wav")
_NAMED = re.compile(r"([A-Za-z_][\w.:/-]*)=(.*)\Z", re.DOTALL)
_NOT_WHOLE = re.compile(r"[.eENI]")
_NUMBERS = re.compile(r"\s*(\[|-?\d|true\b|false\b)")


class RunInputs:
    """The inputs of one run.

    Args:
        dtypes: What the user says of types: `FP32`, or `x=FP32`.

    Attributes:
        guessed: Inputs whose type neither the user nor the model has said, and the one they were sent as.

    Raises CallerError for a type that is none.
    """

    def __init__(self, model: str, dtypes: Sequence[str] = ()) -> None:
        self._model = model
        #: Name, empty for every input -> type.
        self._dtypes: dict[str, str] = {}
        self.guessed: dict[str, str] = {}
        for each in dtypes:
            name, _, dtype = each.rpartition("=")
            if dtype not in ITEM_BYTES:
                raise CallerError(f"--dtype {each:.80}: {dtype!r:.80} is no type; write one of {', '.join(ITEM_BYTES)}")
            if name in self._dtypes:
                raise CallerError(f"--dtype {each:.80}: the type of {name or 'all inputs'} is stated twice; state one")
            self._dtypes[name] = dtype

    def read(self, given: Sequence[str], types: Sequence[TensorType]) -> list[Tensor]:
        """The tensors of a request.

        Args:
            types: The model's inputs, or empty if they are not known.

        Raises:
            CallerError: An argument is wrong; the message names it, and says what to write.
        """
        unused = set(self._dtypes)
        tensors = self._read(given, types, unused)
        if unused:
            named = ", ".join(f"{name}={self._dtypes[name]}" if name else self._dtypes[name] for name in sorted(unused))
            raise CallerError(
                f"--dtype {named} is for no input that is given as numbers or text; files and requests have types of "
                "their own: leave it out, or correct its name"
            )
        return tensors

    def format_guesses(self) -> str:
        """Return a sentence for the end of an error: which data types were guessed, and how to state them."""
        sent = ", ".join(f"{name} as {dtype}" for name, dtype in self.guessed.items())
        flags = " ".join(f"--dtype {name}=TYPE" for name in self.guessed)
        return (
            f"{self._model!r} does not say the types of its inputs before its first run, and {sent} was sent; if "
            f"another type is right, state it: {flags}, such as FP32"
        )

    def _read(self, given: Sequence[str], types: Sequence[TensorType], unused: set[str]) -> list[Tensor]:
        self.guessed = {}
        if len(given) == 1 and (request := _request_in(given[0])) is not None:
            return parse_request(memoryview(request), None).inputs
        tensors: list[Tensor] = []
        for argument in given:
            name, value = _split(argument)
            if name is None and value.endswith(".npz") and _is_file(value):
                tensors += [from_array(key, array) for key, array in _load(value).items()]
                continue
            if name is None:
                if len(given) > 1:
                    raise CallerError(
                        f"{argument!r:.80} is one of {len(given)} inputs and has no name; write name=value"
                    )
                name = _only_name(types, self._model)
            tensors.append(self._one(name, value, types, unused))
        return tensors

    def _one(self, name: str, value: str, types: Sequence[TensorType], unused: set[str]) -> Tensor:
        known = next((each for each in types if each.name == name), None)
        if _is_file(value):
            return _tensor(name, value, known)
        stated = name if name in self._dtypes else ""
        if stated in self._dtypes:
            unused.discard(stated)
            shape = (ANY,) if known is None else known.shape
            return _tensor(name, value, TensorType(name, self._dtypes[stated], shape))
        made = _tensor(name, value, known)
        if known is None:
            self.guessed[name] = made.dtype
        return made


def _request_in(argument: str) -> bytes | None:
    """Return the request that an argument holds or names; None if it is no request."""
    if argument.lstrip().startswith("{"):
        return argument.encode()
    return _read(argument) if argument.endswith(".json") and _is_file(argument) else None


def _split(argument: str) -> tuple[str | None, str]:
    found = None if os.path.isfile(argument) else _NAMED.match(argument)
    return (None, argument) if found is None else (found[1], found[2])


def _is_file(value: str) -> bool:
    """Return whether a value is a file. Raises CallerError for one that must be meant as a file, and is not there."""
    if os.path.isfile(value):
        return True
    if os.path.exists(value) and ("/" in value or value.startswith(".") or value.lower().endswith(_SUFFIXES)):
        what = "a folder" if os.path.isdir(value) else "no regular file"
        raise CallerError(f"{value!r:.200} is {what}; name a file")
    if value.lower().endswith(_SUFFIXES) and not re.search(r"\s", value):
        raise CallerError(f"there is no file {value!r:.200}")
    return False


def _only_name(types: Sequence[TensorType], model: str) -> str:
    if len(types) == 1:
        return types[0].name
    if types:
        known = ", ".join(f"{each.name} ({each.dtype} {list(each.shape)})" for each in types)
        raise CallerError(f"{model!r} has the inputs {known}; write name=value for each")
    raise CallerError(
        f"the inputs of {model!r} are not known before its first run, as neither its manifest nor its graph says them; "
        "write name=value"
    )


def _tensor(name: str, value: str, wanted: TensorType | None) -> Tensor:
    if _is_file(value):
        if value.endswith(".npy"):
            return from_array(name, _load(value))
        if value.endswith(".npz"):
            raise CallerError(f"{value!r} has named inputs of its own; write it without {name}=")
        return _one_element(name, _read(value), wanted)
    if _NUMBERS.match(value) and (wanted is None or wanted.dtype != "BYTES"):
        return _from_numbers(name, value, wanted)
    if wanted is not None and wanted.dtype != "BYTES":
        raise CallerError(
            f"the input {name!r} is {wanted.dtype} of shape {list(wanted.shape)}; write numbers, such as [1, 2], or a "
            f".npy file, not {value!r:.80}"
        )
    return _one_element(name, value.encode(errors="surrogateescape"), wanted)


def _one_element(name: str, content: bytes, wanted: TensorType | None) -> Tensor:
    """A tensor with one element, in as many dimensions as the model takes."""
    shape = (1,) if wanted is None or wanted.dtype != "BYTES" else tuple(max(1, n) for n in wanted.shape)
    if prod(shape) != 1:
        raise CallerError(f"the input {name!r} has {prod(shape)} elements; write them in JSON or in a .npy file")
    return Tensor(name, "BYTES", shape, join_bytes([content]))


def _from_numbers(name: str, value: str, wanted: TensorType | None) -> Tensor:
    import numpy as np

    try:
        array = np.array(json.loads(f"[{value}]" if "," in value and not value.lstrip().startswith("[") else value))
    except (ValueError, RecursionError) as error:
        raise CallerError(f"the input {name!r} is no JSON array of numbers: {error}") from error
    if array.dtype.kind == "f" and not _NOT_WHOLE.search(value):
        raise CallerError(f"the input {name!r} has whole numbers that no type holds together; write smaller ones")
    if array.dtype.kind not in "biuf":
        what = "text" if array.dtype.kind == "U" else "values that are no numbers"
        raise CallerError(f"the input {name!r} holds {what}; write numbers, or text alone")
    if wanted is None:  # as most models have it
        return from_array(name, array.astype(np.float32) if array.dtype.kind == "f" else array)
    if array.dtype.kind == "f" and "INT" in wanted.dtype:
        raise CallerError(
            f"the input {name!r} is {wanted.dtype}; write whole numbers, not {value!r:.80}, or --dtype {name}=TYPE"
        )
    made = cast(name, wanted.dtype, array)
    if array.dtype.kind in "iu" and "INT" not in wanted.dtype:
        _check_unrounded(name, wanted.dtype, array, made)
    return from_array(name, made)


def _check_unrounded(name: str, dtype: str, given: np.ndarray[Any, Any], made: np.ndarray[Any, Any]) -> None:
    """Raise CallerError if a whole number was rounded."""
    for before, after in zip(given.ravel().tolist(), made.ravel().tolist(), strict=True):
        if int(after) != before:
            raise CallerError(f"the input {name!r} is {dtype}, which does not hold {before} but {after}")


def _load(path: str) -> Any:
    """The array or arrays of a file of numpy's. Raises CallerError for one that is broken, or holds Python objects."""
    import numpy as np

    try:
        found = np.load(path, allow_pickle=False)
        if not hasattr(found, "files"):
            return found
        with found:
            return {name: found[name] for name in found.files}
    except Exception as error:
        raise CallerError(f"{path!r} cannot be read as numpy's: {error}") from error


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CallerError(f"{path!r} cannot be read: {error.strerror}") from error
