"""The predictor of ONNX models: an ONNX Runtime session over shared weights."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from trims_client.frameworks import onnxruntime as over_weights

from trims.core.errors import CallerError, NotSupportedError
from trims.manifests.serving import ANY, ANY_RANK, TensorType
from trims_predictors.frameworks.onnxruntime_profiler import OnnxProfiler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims_client.weights import Weights

    from trims_predictors.api import Arrays, Context

_log = logging.getLogger(__name__)
#: Data types of the protocol, by ONNX Runtime's names.
_DTYPES = {
    "tensor(bool)": "BOOL", "tensor(uint8)": "UINT8", "tensor(uint16)": "UINT16", "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64", "tensor(int8)": "INT8", "tensor(int16)": "INT16", "tensor(int32)": "INT32",
    "tensor(int64)": "INT64", "tensor(float16)": "FP16", "tensor(bfloat16)": "BF16", "tensor(float)": "FP32",
    "tensor(double)": "FP64", "tensor(string)": "BYTES",
}  # fmt: skip
#: A type of the protocol that ONNX Runtime makes no NumPy array of, and takes none for.
_BFLOAT16 = "tensor(bfloat16)"


class OnnxPredictor:
    """A session; its inputs and outputs are those of the graph.

    Outputs that are no tensors of the protocol are left out: maps and sequences of maps, as scikit-learn's `ZipMap`
    gives probabilities, optional values, complex numbers.
    """

    _session: over_weights.SharedSession
    _weights: Weights
    _threads: int
    #: Names of the outputs that are sent, and of those that are left out, with their types.
    _names: list[str]
    _left_out: Mapping[str, str]

    def load(self, weights: Weights, context: Context) -> None:
        """Make the session.

        Raises what `trims.onnxruntime.session` raises, and NotSupportedError for a graph that no request can feed, or
        none of whose outputs can be sent.
        """
        self._weights, self._threads = weights, context.threads
        self._session = self._made()
        self._choose(context.model)

    def _made(self, profile: str = "") -> over_weights.SharedSession:
        """Return a session over the weights, which writes its profile to a file whose name begins so, if at all."""
        both = [onnxruntime.SessionOptions(), onnxruntime.SessionOptions()]
        for number, options in enumerate(both):
            options.intra_op_num_threads = self._threads
            if profile:
                options.enable_profiling, options.profile_file_prefix = True, f"{profile}{number}"
        return over_weights.session(self._weights, session_options=both[0], packed_options=both[1])

    def make_profiler(self) -> OnnxProfiler:
        """Return the profiler of one run."""
        return OnnxProfiler(self, over_weights.running)

    def profiling_session(self, prefix: str) -> over_weights.SharedSession:
        """Return a session like this one that writes a profile (see `OnnxProfiler`), packed if it ever is."""
        made = self._made(prefix)
        made.pack()
        return made

    def exchange_session(self, session: over_weights.SharedSession) -> over_weights.SharedSession:
        """Run with another session from now on; return the one before."""
        before, self._session = self._session, session
        return before

    def _choose(self, model: str) -> None:
        """Find out which outputs can be sent."""
        for taken in self._session.get_inputs():
            if taken.type == _BFLOAT16:
                raise NotSupportedError(
                    f"{model}: the graph takes the input {taken.name!r} as BF16, for which ONNX Runtime takes no NumPy "
                    "array; export the model with FP32 inputs, and a Cast behind them"
                )
            if taken.type not in _DTYPES:
                raise NotSupportedError(
                    f"{model}: the graph takes the input {taken.name!r} of the type {taken.type}, which no request can "
                    "bring; export the model with tensors as inputs"
                )
        found = {each.name: each.type for each in self._session.get_outputs()}
        self._left_out = {name: kind for name, kind in found.items() if not _can_be_sent(kind)}
        self._names = [name for name in found if name not in self._left_out]
        if not self._names:
            raise NotSupportedError(f"{model}: {_why_left_out(self._left_out)}, and the graph has no other output")
        if self._left_out:
            _log.warning("%s: left out of answers: %s", model, _why_left_out(self._left_out))

    def predict(self, inputs: Arrays) -> Arrays:
        """One run. Raises CallerError for inputs that the graph does not take."""
        return self._run(self._names, inputs)

    def predict_only(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """One run of which only these outputs are fetched.

        Raises CallerError also for an output that the graph lacks, and NotSupportedError for one that cannot be sent.
        """
        for name in outputs:
            if name in self._left_out:
                raise NotSupportedError(f"{_why_left_out({name: self._left_out[name]})}; ask for others")
            if name not in self._names:
                raise CallerError(f"the model has no output {name!r}; it has {', '.join(self._names)}")
        return self._run(list(outputs), inputs)

    def _run(self, names: list[str], inputs: Arrays) -> Arrays:
        given = {name: _texts(name, array) if array.dtype == object else array for name, array in inputs.items()}
        try:
            return dict(zip(names, self._session.run(names, given), strict=True))
        except (ValueError, onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument) as error:
            raise CallerError(f"ONNX Runtime refuses the request: {error}") from error

    def rehearse(self, inputs: Arrays) -> Arrays:
        """Take the memory of a run, and go over to packed weights: no thread may read weights after this."""
        outputs = self.predict(inputs)
        return self.predict(inputs) if self._session.pack() in ("packed", "private") else outputs

    def inputs(self) -> list[TensorType]:
        """Return the inputs of the graph."""
        return [_type(each) for each in self._session.get_inputs()]

    def outputs(self) -> list[TensorType]:
        """Return the outputs of the graph, without those of types that cannot be sent."""
        return [_type(each) for each in self._session.get_outputs() if _can_be_sent(each.type)]

    def unload(self) -> None:
        """Let go of the session."""
        del self._session, self._weights


def _can_be_sent(kind: str) -> bool:
    return kind in _DTYPES and kind != _BFLOAT16


def _texts(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    try:
        return np.array([each.decode() for each in array.ravel()], dtype=object).reshape(array.shape)
    except UnicodeDecodeError as error:
        raise CallerError(f"the input {name!r} is no UTF-8 text: {error}") from error


def _why_left_out(outputs: Mapping[str, str]) -> str:
    listed = ", ".join(f"{name!r} of the type {kind}" for name, kind in outputs.items())
    return f"the inference protocol, or ONNX Runtime for NumPy, has no tensors for {listed}"


def _type(node: onnxruntime.NodeArg) -> TensorType:
    # ONNX Runtime says [] of a scalar, and of what has no stated shape. It refuses what is no scalar by itself.
    shape = tuple(length if isinstance(length, int) else ANY for length in node.shape) or (ANY_RANK,)
    return TensorType(node.name, _DTYPES[node.type], shape)


def warm_up_template() -> None:
    """Nothing: a session would start threads."""


def warm_up(threads: int) -> None:
    """Nothing: the threads belong to a session, and so to a model."""
    del threads
