"""Tensors that go in and come out: which shapes they admit, and which no request can have."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from trims.core.errors import ManifestError
from trims.manifests.serving import ANY_RANK, TensorType, check_tensors

X = TensorType("x", "FP32", (-1, 3))


def test_a_shape_admits_any_length_where_it_says_so() -> None:
    assert X.admits((7, 3))
    assert not X.admits((7, 4))
    assert not X.admits((3,))


def test_tensors_of_a_predictor_are_such_as_requests_may_have() -> None:
    check_tensors([X, TensorType("y", "BYTES", (ANY_RANK,))], "m")


@pytest.mark.parametrize(
    "wrong", [("", "FP32", ()), (1, "FP32", ()), ("x", "F32", ()), ("x", [], ()), ("x", "FP32", (-3,)),
              ("x", "FP32", ("a",)), ("x", "FP32", (True,)), ("x", "FP32", (1,) * 33), ("x", "FP32", (1 << 63,))],
)  # fmt: skip
def test_a_tensor_that_no_request_can_have_is_refused(wrong: tuple[Any, Any, Any]) -> None:
    with pytest.raises(ManifestError, match=r"m\[1\]: .*is no tensor: it needs a name"):
        check_tensors([X, TensorType(*wrong)], "m")


def test_a_name_stands_for_one_tensor() -> None:
    with pytest.raises(ManifestError, match="m: 'x' is there twice"):
        check_tensors([X, X], "m")


def test_predictors_and_converters_need_no_msgspec_in_their_environments() -> None:
    names = "trims_predictors.worker.worker, trims_predictors.transforms.pipeline, trims_predictors.transforms.chain"
    program = (
        f"import sys; sys.modules['msgspec'] = None; import {names}, trims.formats.base, trims.formats.conversion.child"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
