"""The predictor of a handler, as platforms for functions have it: `def handler(model, event)`, with JSON in and out.

Its only input is `event`, and its only output `answer`: both are one element of BYTES, with JSON. A CloudEvent comes as
three elements: its attributes, the kind of its data, and the data (`CloudEvent.elements`).
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from trims_client.events import CloudEvent, parse_event
from trims_client.faas import answer_text, model_as

from trims.core.errors import CallerError, NotSupportedError
from trims.manifests.serving import ANY, TensorType
from trims_predictors.frameworks import ANSWER, AS, EVENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_client.weights import Weights

    from trims_predictors.api import Arrays, Context

#: Elements of a CloudEvent.
_PARTS = 3


class HandlerPredictor:
    """Calls `function(model, event)` for each request.

    Args:
        function: The handler.
    """

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
