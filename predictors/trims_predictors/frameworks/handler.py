"""The predictor of a handler, as platforms for functions have it: `def handler(model, event)`, with JSON in and out.

Its only input is `event`, and its only output `answer`: both are one element of BYTES, with JSON.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from trims_client.faas import answer_text, model_as

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_client.weights import Weights

    from trims_predictors.api import Arrays, Context

EVENT, ANSWER = "event", "answer"
#: The option that says what the handler gets its model as.
AS = "as"


class HandlerPredictor:
    """Calls `function(model, event)` for each request.

    Args:
        function: The handler.
        name: Of the handler, for errors.
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

    def predict(self, inputs: Arrays) -> Arrays:
        """One event. Raises what the handler raises, and PredictorError if it returns what JSON cannot hold."""
        event = json.loads(inputs[EVENT].ravel()[0])
        answer = answer_text(self._function(self._model, event))
        return {ANSWER: np.array([answer.encode()], dtype=object)}

    def unload(self) -> None:
        """Let go of the model."""
        del self._model


def _set_threads(threads: int) -> None:
    """Set the number of threads that the manifest says: templates are started with one."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
    if "mxnet" in sys.modules:
        from trims_predictors.frameworks import mxnet

        mxnet.set_threads(threads)
