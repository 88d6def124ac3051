"""The predictor of ONNX models: an ONNX Runtime session over shared weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from trims_client.frameworks import onnxruntime as over_weights

from trims.core.errors import CallerError
from trims.core.serving import ANY, TensorType

if TYPE_CHECKING:
    from trims_client.weights import Weights

    from trims_predictors.predictor import Arrays, Context

#: What ONNX Runtime calls the data types of the protocol.
_DTYPES = {
    "tensor(bool)": "BOOL", "tensor(uint8)": "UINT8", "tensor(uint16)": "UINT16", "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64", "tensor(int8)": "INT8", "tensor(int16)": "INT16", "tensor(int32)": "INT32",
    "tensor(int64)": "INT64", "tensor(float16)": "FP16", "tensor(bfloat16)": "BF16", "tensor(float)": "FP32",
    "tensor(double)": "FP64", "tensor(string)": "BYTES",
}  # fmt: skip


class OnnxPredictor:
    """A session; its inputs and outputs are those of the graph."""

    _session: over_weights.SharedSession

    def load(self, weights: Weights, context: Context) -> None:
        """Make the session. Raises what `trims.onnxruntime.session` raises."""
        both = [onnxruntime.SessionOptions(), onnxruntime.SessionOptions()]
        for options in both:
            options.intra_op_num_threads = context.threads
        self._session = over_weights.session(weights, session_options=both[0], packed_options=both[1])

    def predict(self, inputs: Arrays) -> Arrays:
        """One run. Raises CallerError for inputs that the graph does not take."""
        names = [each.name for each in self._session.get_outputs()]
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
        """Of the graph."""
        return [_type(each) for each in self._session.get_inputs()]

    def outputs(self) -> list[TensorType]:
        """Of the graph."""
        return [_type(each) for each in self._session.get_outputs()]

    def unload(self) -> None:
        """Let go of the session."""
        del self._session


def _texts(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    try:
        return np.array([each.decode() for each in array.ravel()], dtype=object).reshape(array.shape)
    except UnicodeDecodeError as error:
        raise CallerError(f"the input {name!r} is no UTF-8 text: {error}") from error


def _type(node: onnxruntime.NodeArg) -> TensorType:
    shape = tuple(length if isinstance(length, int) else ANY for length in node.shape)
    return TensorType(node.name, _DTYPES.get(node.type, node.type), shape)


def warm_up_template() -> None:
    """Nothing: a session would start threads."""


def warm_up(threads: int) -> None:
    """Nothing: the threads belong to a session, and so to a model."""
    del threads
