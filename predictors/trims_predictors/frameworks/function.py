"""The predictor of a plain function: for models whose weights are arrays, and whose code is one function over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trims.core.errors import PredictorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_client.weights import Weights

    from trims_predictors.api import Arrays, Context


class FunctionPredictor:
    """Calls `function(weights, inputs, **options)` for each request.

    Args:
        function: Takes the weights, name -> view into shared memory, and the inputs, name -> array. It returns the
            outputs, name -> array or number.
    """

    _weights: Weights
    _options: Mapping[str, Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def load(self, weights: Weights, context: Context) -> None:
        """Keep the weights; views into them are made when the function asks for them."""
        self._weights, self._options = weights, context.options

    def predict(self, inputs: Arrays) -> Arrays:
        """One call. Raises what the function raises, and PredictorError if it returns no mapping."""
        made = self._function(self._weights, inputs, **self._options)
        if not isinstance(made, Mapping):
            raise PredictorError(
                f"{self._function.__name__} returned {type(made).__name__}; it must return a dict of name -> array"
            )
        return {str(name): np.asarray(value) for name, value in made.items()}

    def unload(self) -> None:
        """Let go of the weights."""
        del self._weights
