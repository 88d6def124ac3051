"""Predictors by the name in a manifest or a command: a class, an entry point, a function, or a handler."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from trims_client.events import CloudEvent, parse_event
from trims_client.faas import answer_text, model_as

from trims.core.errors import CallerError, ConfigError, NotSupportedError
from trims.manifests.serving import ANY, TensorType
from trims_predictors.api import Predictor
from trims_predictors.frameworks import ANSWER, AS, EVENT, FUNCTION, HANDLER, PLUGIN
from trims_predictors.frameworks.function import FunctionPredictor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims_client.weights import Weights

    from trims_predictors.api import Arrays, Context


# The predictor of a handler, as platforms for functions have it: `def handler(model, event)`, with JSON in and out.
#
# Its only input is `event`, and its only output `answer`: both are one element of BYTES, with JSON. A CloudEvent comes
# as three elements: its attributes, the kind of its data, and the data (`CloudEvent.elements`).

#: Elements of a CloudEvent.
_PARTS = 3


class HandlerPredictor:
    """Calls `function(model, event)` for each request."""

    _model: Any

    def __init__(self, function: Callable[[Any, Any], Any], name: str) -> None:
        if not callable(function):
            raise NotSupportedError(f"{name} is no function; a handler is `def handler(model, event)`")
        if inspect.iscoroutinefunction(function):
            raise NotSupportedError(f"{name} is `async def`; a handler is plain: `def handler(model, event)`")
        self._function = function

    def load(self, weights: Weights, context: Context) -> None:
        """Make of the weights what the handler wants. Raises what `faas.model_as` raises."""
        self._model = model_as(weights, context.options[AS], context.threads)
        _set_threads(context.threads)

    def inputs(self) -> tuple[TensorType, ...]:
        """Return the one input."""
        return (TensorType(EVENT, "BYTES", (ANY,)),)

    def outputs(self) -> tuple[TensorType, ...]:
        """Return the one output."""
        return (TensorType(ANSWER, "BYTES", (1,)),)

    def predict(self, inputs: Arrays) -> Arrays:
        """One event.

        Raises what the handler raises, CallerError for no event or one that is no JSON, and PredictorError for an
        answer that JSON cannot hold.
        """
        if EVENT not in inputs:
            raise CallerError(f"it is a function, whose only input is {EVENT!r}; call it by POST /functions/NAME")
        answer = answer_text(self._function(self._model, _event(inputs[EVENT].ravel())))
        return {ANSWER: np.array([answer.encode()], dtype=object)}

    def unload(self) -> None:
        """Let go of the model."""
        del self._model


def _event(elements: np.ndarray[Any, Any]) -> Any:
    """Return the event of one element, its JSON; or of three: a CloudEvent's attributes, the kind of its data, these.

    Raises CallerError.
    """
    if len(elements) == 1:
        return parse_event(elements[0])
    if len(elements) != _PARTS:
        raise CallerError(f"the input {EVENT!r} has {len(elements)} elements; send one: the event as JSON")
    return CloudEvent.of(*map(bytes, elements)).value()


def _set_threads(threads: int) -> None:
    """Set the number of threads that the manifest says: templates are started with one."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
    if "mxnet" in sys.modules:
        from trims_predictors.frameworks import mxnet

        mxnet.set_threads(threads)


#: Entry points of this group are classes of predictors.
GROUP = "trims.predictors"


def make(call: str, how: str, folder: str) -> Predictor:
    """An instance of what a manifest or trims names.

    Args:
        call: `package.module:Class`, the name of an entry point, `package.module:function`, or a handler:
            `path/of/file.py:function`.
        how: Kind of `call`: `CLASS`, `PLUGIN`, `FUNCTION` or `HANDLER`.
        folder: Folder of the manifest, where a module may lie; or empty.

    Raises:
        NotSupportedError: Nothing has that name, or it is no predictor.
        ConfigError: Two packages have a predictor of that name.
    """
    if how == HANDLER:
        return HandlerPredictor(from_file(call), call)
    if how == FUNCTION:
        function = imported(call, folder, "the predictor")
        if not callable(function):
            raise NotSupportedError(f"{call} is no function; it must be one of (weights, inputs)")
        return FunctionPredictor(function)
    made = (plugin(call) if how == PLUGIN else imported(call, folder, "the predictor"))()
    if not isinstance(made, Predictor):
        raise NotSupportedError(f"{call} is no predictor: it needs the methods load, predict and unload")
    return made


def imported(call: str, folder: str, what: str) -> Any:
    """Import the object that `package.module:name` names; the module may lie in the folder.

    Raises NotSupportedError if it is not there, and what else the module's code raises.
    """
    module_name, _, name = call.partition(":")
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with _no_bytecode(unless=not folder):
            module = importlib.import_module(module_name)
    except ImportError as error:
        raise NotSupportedError(
            f"{what} {call} cannot be imported: {error}; install its package in the predictor's environment"
        ) from error
    try:
        return getattr(module, name)
    except AttributeError as error:
        where = getattr(module, "__file__", None) or "which is built in"
        raise NotSupportedError(
            f"{what} {call} cannot be imported: the module {module_name} ({where}) has no {name!r}; correct the name "
            "in the manifest, or define it there"
        ) from error


@contextlib.contextmanager
def _no_bytecode(*, unless: bool = False) -> Iterator[None]:
    """Leave no compiled files beside a manifest.

    Python takes one for its source's if both agree on the size and the whole second, so code that was edited twice in a
    second would be served as it was before.
    """
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = before or not unless
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def from_file(call: str) -> Any:
    """Import the object that `path/of/file.py:name` names. Other modules of its folder can be imported, too.

    Raises what the file's code raises, and NotSupportedError if it has no such name, or that of another module.
    """
    path, _, name = call.rpartition(":")
    folder, file = os.path.split(path)
    module_name = file.removesuffix(".py")
    if module_name in sys.modules:
        raise NotSupportedError(
            f"{path} cannot be imported as {module_name!r}: a module of that name is there already; rename the file"
        )
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise NotSupportedError(f"{path} is no Python file")
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    with _no_bytecode():
        spec.loader.exec_module(module)
    try:
        return getattr(module, name)
    except AttributeError:
        found = ", ".join(each for each, value in vars(module).items() if callable(value)) or "none"
        raise NotSupportedError(f"{path} has no function {name!r}; it has {found}") from None


def plugin(name: str) -> Any:
    """The class of an entry point. Raises NotSupportedError naming those there are, ConfigError for two of a name."""
    entries = importlib.metadata.entry_points(group=GROUP)
    found = {entry.value: entry for entry in entries if entry.name == name}
    if not found:
        known = ", ".join(sorted({entry.name for entry in entries})) or "none"
        raise NotSupportedError(
            f"there is no predictor {name!r} in the predictor's environment; known are {known} (entry points of "
            f"{GROUP}); install its package there"
        )
    if len(found) > 1:
        raise ConfigError(f"two packages have a predictor {name!r}: {' and '.join(sorted(found))}; uninstall one")
    (entry,) = found.values()
    try:
        return entry.load()
    except Exception as error:  # a plugin may fail in any way; it must not look like our failure
        raise NotSupportedError(
            f"the {GROUP} plugin {name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
