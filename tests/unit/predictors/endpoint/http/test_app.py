from __future__ import annotations

import pytest
from trims_predictors.endpoint.http.app import raw_request
from trims_predictors.tensors import Tensor, to_array

from trims.core.errors import CallerError
from trims.manifests.serving import TensorType

# Bodies that are one input's data and nothing else: their shape follows from the model, or they are refused.


@pytest.mark.parametrize(
    ("stated", "batches", "nbytes", "shape"),
    [
        (TensorType("x", "FP32", (2, 2)), False, 16, (2, 2)),
        (TensorType("x", "FP32", (-1, 2)), False, 24, (3, 2)),
        (TensorType("x", "FP32", (-1, 2)), False, 0, (0, 2)),
        (TensorType("x", "INT8", (-1, 3, -1)), True, 12, (1, 3, 4)),
        (TensorType("x", "FP64", ()), False, 8, ()),
        (TensorType("x", "BYTES", (1,)), False, 5, (1,)),
        (TensorType("x", "BYTES", (-1, 1)), True, 5, (1, 1)),
        (TensorType("x", "BYTES", (-1,)), False, 0, (1,)),
    ],
)
def test_a_raw_body_has_the_shape_that_its_bytes_make(
    stated: TensorType, batches: bool, nbytes: int, shape: tuple[int, ...]
) -> None:
    (tensor,) = raw_request(memoryview(bytes(nbytes)), [stated], batches=batches, model="m").inputs
    assert (tensor.name, tensor.dtype, tensor.shape) == ("x", stated.dtype, shape)
    Tensor(tensor.name, tensor.dtype, tensor.shape, tensor.data).check()
    if stated.dtype == "BYTES":
        assert to_array(tensor).ravel().tolist() == [bytes(nbytes)]


X_ANY = TensorType("x", "FP32", (-1,))


@pytest.mark.parametrize(
    ("stated", "nbytes", "why"),
    [
        ([], 4, "has not told its inputs yet"),
        ([X_ANY, TensorType("y", "FP32", (1,))], 4, "2 inputs"),
        ([X_ANY], 5, "multiple of 4"),
        ([TensorType("x", "FP32", (2,))], 4, "has 8"),
        ([TensorType("x", "FP32", (-1, -1))], 4, "leaves one length open"),
        ([TensorType("x", "FP32", (-1, 0))], 4, "has 4 bytes"),
        ([TensorType("x", "BYTES", (2,))], 4, "brings one element"),
    ],
)
def test_a_raw_body_that_cannot_be_the_input_is_refused(stated: list[TensorType], nbytes: int, why: str) -> None:
    with pytest.raises(CallerError, match=why):
        raw_request(memoryview(bytes(nbytes)), stated, batches=False, model="m")
