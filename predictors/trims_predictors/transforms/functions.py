"""Steps that are Python functions of the manifest's author: by name, or as source text in a module of its own."""

from __future__ import annotations

import linecache
import sys
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trims.core.errors import CallerError, NotSupportedError, PredictorError, TrimsError
from trims.manifests.steps import SOURCE_STEP
from trims.process.forks import parent_only
from trims_predictors.frameworks.resolve import imported
from trims_predictors.tensors import check_array, check_name, check_texts
from trims_predictors.tracebacks import told
from trims_predictors.transforms.base import is_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trims.manifests.steps import Step
    from trims_predictors.transforms.base import Array

#: Modules of source text begin with it.
_MODULES = "trims_step_"


@dataclass(frozen=True, slots=True)
class StepContext:
    """Facts that a function of a step gets beside the tensors.

    Attributes:
        model: Name of the model.
        options: `options` of the step.
        attributes: `attributes` of the manifest.
        folder: Of the manifest; empty if it has none.
        given: In `postprocess`: the tensors that the predictor was given, after `preprocess`.
    """

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""
    given: Mapping[str, Array] = field(default_factory=dict)


def function_of(step: Step, label: str, folder: str) -> Callable[..., Any]:
    """The function that a step names or brings.

    Args:
        step: Of the kind `call` or `source`.
        label: Of the step, for messages and for the source's name in tracebacks.
        folder: Of the manifest, where a named module may lie.

    Raises:
        NotSupportedError: It cannot be imported, or is no function.
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
        raise PredictorError(f"the source of {label} cannot be run: {told(error)}") from error
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
        raise PredictorError(f"{label} failed: {told(error)}") from error
    if not isinstance(made, dict):
        raise PredictorError(f"{label} returned {type(made).__name__}; it must return a dict of name -> numpy array")
    try:
        return {name: _returned(name, value) for name, value in made.items()}
    except Exception as error:
        reason = str(error) if isinstance(error, CallerError) else told(error)
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
