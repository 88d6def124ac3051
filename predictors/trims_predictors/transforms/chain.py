"""A list of steps, made ready when a predictor loads its model, and run for each request or batch of requests."""

from __future__ import annotations

import linecache
import sys
import types
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trims.core.errors import CallerError, NotSupportedError, PredictorError, TrimsError
from trims.manifests.steps import SOURCE_STEP, Step
from trims.process.forks import parent_only
from trims_predictors.frameworks.resolve import imported
from trims_predictors.tensors import check_array, check_is_array, check_name, check_texts
from trims_predictors.tracebacks import format_error
from trims_predictors.transforms import arrays, images, ranking, text
from trims_predictors.transforms.base import RefusedError, is_apart, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trims_predictors.api import Context
    from trims_predictors.transforms.base import Array, Builder

    Data = Mapping[str, Array]
    #: Function from the tensors, and those that the predictor was given, to the tensors for the next step.
    _Work = Callable[[Data, Data], dict[str, Array]]


# Steps that are Python functions of the manifest's author: by name, or as source text in a module of its own.

#: Modules of source text begin with it.
_MODULES = "trims_step_"


@dataclass(frozen=True, slots=True)
class StepContext:
    """Facts that a function of a step gets beside the tensors.

    Attributes:
        attributes: `attributes` of the manifest.
        folder: Folder of the manifest; empty if it has none.
        given: Tensors that the predictor was given, after `preprocess`; for steps of `postprocess`.
    """

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""
    given: Mapping[str, Array] = field(default_factory=dict)


def function_of(step: Step, label: str, folder: str) -> Callable[..., Any]:
    """The function that a step names or brings.

    Args:
        step: Step of the kind `call` or `source`.
        label: Name of the step, for messages and for the source's name in tracebacks.
        folder: Folder of the manifest, where a named module may lie.

    Raises:
        NotSupportedError: The name cannot be imported, or is no function.
        PredictorError: The source text fails.
    """
    if step.kind == SOURCE_STEP:
        found = getattr(_run_source(step.fields["source"], label), step.fields["function"], None)
        what = f"{step.fields['function']} in the source"
    else:
        found, what = imported(step.fields["call"], folder, label), step.fields["call"]
    if not callable(found):
        raise NotSupportedError(f"{label}: {what} is no function; it must be one of (context, data)")
    return found  # type: ignore[no-any-return]


def _run_source(source: str, label: str) -> types.ModuleType:
    """A new module in which the source has run: nothing in it is seen by another step."""
    file = f"<{label}>"
    module = types.ModuleType(_MODULES + "".join(letter if letter.isalnum() else "_" for letter in label))
    module.__file__ = file
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # tracebacks show its lines
    sys.modules[module.__name__] = module  # dataclasses and pickles look for it there
    try:
        exec(compile(source, file, "exec"), module.__dict__)  # noqa: S102 - the manifest's author chose this code
    except (Exception, SystemExit) as error:
        raise PredictorError(f"the source of {label} cannot be run: {format_error(error)}") from error
    return module


def call(function: Callable[..., Any], label: str, context: StepContext, data: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors that a function makes of these.

    Raises what the function raises if that is an error of trims, such as CallerError, else PredictorError.
    """
    try:
        with parent_only():
            made = function(context, dict(data))
    except TrimsError:
        raise
    except (Exception, SystemExit) as error:
        raise PredictorError(f"{label} failed: {format_error(error)}") from error
    if not isinstance(made, dict):
        raise PredictorError(f"{label} returned {type(made).__name__}; it must return a dict of name -> numpy array")
    try:
        return {name: _returned(name, value) for name, value in made.items()}
    except Exception as error:
        reason = str(error) if isinstance(error, CallerError) else format_error(error)
        raise PredictorError(
            f"{label} returned what is no tensor: {reason}; it must return a dict of name -> numpy array"
        ) from error


def _returned(name: str, value: Any) -> Array:
    """Return the value as an array. Raises CallerError if it can be no tensor: a fault of the function."""
    check_name(name)
    if isinstance(value, np.ndarray):
        check_array(name, value)  # before the mask is lost
    array = np.asarray(value)
    for each in array if is_apart(array) else [array]:
        check_array(name, each)
        if each.dtype == object:
            check_texts(name, each)
    return array


BUILDERS: Mapping[str, Builder] = {
    "decode_image": images.decode_image,
    "resize": images.resize,
    "center_crop": images.center_crop,
    "normalize": arrays.normalize,
    "layout": arrays.layout,
    "cast": arrays.cast,
    "tokenize": text.tokenize,
    "softmax": arrays.softmax,
    "top_k": ranking.top_k,
    "argsort": ranking.argsort,
    "mean_pool": arrays.mean_pool,
    "l2_normalize": arrays.l2_normalize,
}


class Chain:
    """Steps in order.

    Args:
        which: `preprocess`, whose data is the request's: what is wrong with it is the caller's fault; or
            `postprocess`, whose data is the predictor's.
        folder: Folder of the manifest; empty if it has none.

    Raises:
        NotSupportedError: A library, a file or a function is not there.
        PredictorError: Source text fails.
    """

    def __init__(self, steps: Sequence[Step], which: str, context: Context, folder: str) -> None:
        self._which = which
        self._error: type[TrimsError] = CallerError if which == "preprocess" else PredictorError
        self._work = [self._made(step, f"{which}[{n}] {step.kind}", context, folder) for n, step in enumerate(steps)]

    def __bool__(self) -> bool:
        return bool(self._work)

    def run(self, data: Data, given: Data | None = None) -> dict[str, Array]:
        """The tensors after the last step.

        Args:
            data: Name -> array, which stay as they are unless a function writes to them.
            given: What the predictor was given, in `postprocess`: steps find there what `data` lacks.

        Raises:
            CallerError: A tensor of the request is wrong; the message names step, tensor and remedy.
            PredictorError: One of the predictor is, or a function fails.
        """
        for work in self._work:
            data = work(data, given or {})
        return {name: self._finished(name, array) for name, array in data.items()}

    def _finished(self, name: str, array: Array) -> Array:
        """Return an array in the form that frameworks take: images together, rows in order."""
        try:
            check_is_array(name, array)
        except CallerError as error:
            what = "input" if self._which == "preprocess" else "answer"
            raise self._error(f"what `{self._which}` left is no {what}: {error}") from error
        try:
            return np.asarray(together(array), order="C")
        except RefusedError as error:
            raise self._error(f"{self._which} ends with the tensor {name!r}, but {error}") from error

    def _made(self, step: Step, label: str, context: Context, folder: str) -> _Work:
        if step.is_function:
            function = function_of(step, f"{label} of {context.model}", folder)
            context_of = partial(StepContext, context.model, step.fields["options"], context.attributes, folder)
            return lambda data, given: call(function, label, context_of(given), data)
        operation = BUILDERS[step.kind](step.fields, folder)

        def work(data: Data, given: Data) -> dict[str, Array]:
            taken = [self._found(name, label, data, given) for name in step.reads]
            try:
                made = operation(*taken)
            except RefusedError as error:
                raise self._error(f"{label} cannot take the tensor {step.reads[0]!r}: {error}") from error
            except (TrimsError, MemoryError):
                raise
            except Exception as error:
                raise PredictorError(f"{label} failed: {format_error(error)}") from error
            kept = {name: array for name, array in data.items() if step.fields["keep"] or name != step.fields["input"]}
            return {**kept, **dict(zip(step.writes, made, strict=True))}

        return work

    def _found(self, name: str, label: str, data: Data, given: Data) -> Array:
        array = data.get(name, given.get(name))
        if array is None:
            there = ", ".join({**given, **data}) or "none"
            raise self._error(f"{label} needs the tensor {name!r}, which is not there; there are {there}")
        return array


def steps_of(described: Iterable[Any]) -> tuple[Step, ...]:
    """Steps as a message between processes has them."""
    return tuple(Step(each["kind"], each["fields"]) for each in described)
