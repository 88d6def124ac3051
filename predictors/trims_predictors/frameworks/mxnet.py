"""The predictor of MXNet models: an executor over shared parameters, bound for the shapes of the request.

MXNet hooks into fork: after one, its engine would start threads in the template, which could not be forked again. So
templates of MXNet and their predictors use the engine that has none (`NaiveEngine`). Operators are parallel in it, too.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import mxnet
import numpy as np
from trims_client.frameworks import mxnet as over_weights

from trims.core.errors import CallerError
from trims_predictors.frameworks.mxnet_profiler import MxnetProfiler
from trims_predictors.tensors import numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_client.weights import Weights

    from trims_predictors.api import Arrays, Context

#: Name, shape and numpy's type of each input.
_Shapes = tuple[tuple[str, tuple[int, ...], str], ...]


class MxnetPredictor:
    """A graph, bound once for each combination of input shapes and types (the last one is kept)."""

    _weights: Weights
    _executor: Any
    _bound: _Shapes | None = None
    _names: tuple[str, ...]

    def load(self, weights: Weights, context: Context) -> None:
        """Bind the graph at once if the manifest states fixed shapes, else at the first request."""
        set_threads(context.threads)
        self._weights = weights
        self._names = tuple(each.name for each in context.outputs)
        stated = [(each, tuple(1 if n < 0 else n for n in each.shape)) for each in context.inputs]
        if stated and all(each.dtype != "BYTES" for each, _ in stated):
            self._bind(tuple((each.name, shape, np.dtype(numpy_dtype(each.dtype)).name) for each, shape in stated))

    def _bind(self, shapes: _Shapes) -> None:
        if shapes != self._bound:
            self._executor = over_weights.executor(
                self._weights,
                {name: shape for name, shape, _ in shapes},
                dtypes={name: dtype for name, _, dtype in shapes},
            )
            self._bound = shapes

    def predict(self, inputs: Arrays) -> Arrays:
        """One forward pass. Raises CallerError for inputs that the graph does not take."""
        for name, array in inputs.items():
            if array.dtype == object:
                raise CallerError(f"the input {name!r} is text (BYTES), which MXNet has no arrays for")
        self._bind(_shapes(inputs))
        for name, array in inputs.items():
            # Not by `mxnet.nd.array`, which makes float32 of every array.
            self._executor.arg_dict[name][:] = array
        found = self._executor.forward(is_train=False)
        names = self._names if len(self._names) == len(found) else self._executor.output_dict
        return {name: each.asnumpy() for name, each in zip(names, found, strict=True)}

    def make_profiler(self) -> MxnetProfiler:
        """Return the profiler of one run."""
        return MxnetProfiler(self)

    def watched_executor(self, watch: Callable[[Any, Any], None], inputs: Arrays) -> Any:
        """Return an executor over the same arrays that calls `watch` after each operator (see `MxnetProfiler`)."""
        self._bind(_shapes(inputs))
        made = self._executor.reshape(**{name: array.shape for name, array in inputs.items()})
        made.set_monitor_callback(watch)
        return made

    def exchange_executor(self, executor: Any) -> Any:
        """Run with another executor from now on; return the one before."""
        before, self._executor = self._executor, executor
        return before

    def rehearse(self, inputs: Arrays) -> Arrays:
        """Bind the graph for these shapes, lay the weights out for it and take the memory of a run."""
        return self.predict(inputs)

    def unload(self) -> None:
        """Let go of the graph."""
        self._executor = None


def _shapes(inputs: Arrays) -> _Shapes:
    return tuple((name, array.shape, array.dtype.name) for name, array in inputs.items())


def set_threads(threads: int) -> None:
    """Have MXNet's operators compute with `threads` threads.

    MXNet has no function for it. Its operators ask OpenMP's library, which templates are started with one thread for.
    """
    with open("/proc/self/maps") as file:
        libraries = {line.split(maxsplit=5)[5].strip() for line in file if "libgomp" in line or "libomp" in line}
    for library in libraries:
        ctypes.CDLL(library).omp_set_num_threads(threads)


def warm_up_template() -> None:
    """Nothing: an operation would start OpenMP's threads."""


def warm_up(threads: int) -> None:
    """One operation, which starts the threads of this predictor."""
    set_threads(threads)
    image = mxnet.nd.zeros((1, 3, 32, 32))
    mxnet.nd.Convolution(image, mxnet.nd.zeros((8, 3, 3, 3)), no_bias=True, kernel=(3, 3), num_filter=8).wait_to_read()
