"""The predictor of PyTorch models, over real weights in memory of the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
from trims_predictors.api import Context
from trims_predictors.frameworks import torch as builtin

from trims.core.errors import CallerError
from trims.manifests.serving import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator


def predictor(module: torch.nn.Module, monkeypatch: pytest.MonkeyPatch, *outputs: str) -> builtin.TorchPredictor:
    monkeypatch.setattr(builtin.over_weights, "module", lambda weights: module)
    made = builtin.TorchPredictor()
    weights: Any = None
    made.load(weights, Context("m", outputs=tuple(TensorType(name, "FP32", (-1,)) for name in outputs), threads=1))
    return made


class Two(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return a + b, (a - b, "no tensor")[0], "no tensor"


class Named(torch.nn.Module):
    def forward(self, a: torch.Tensor) -> Any:
        return {"sum": a.sum(), "twice": a * 2, "none": None}


A, B = np.array([1.0, 2.0], "f4"), np.array([3.0, 5.0], "f4")


def test_inputs_go_to_arguments_by_name_whatever_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    found = predictor(Two(), monkeypatch).predict({"b": B, "a": A})
    assert {name: array.tolist() for name, array in found.items()} == {"output_0": [4, 7], "output_1": [-2, -3]}


def test_a_rehearsal_is_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[float]] = []

    class Told(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            ran.append(a.tolist())
            return a

    predictor(Told(), monkeypatch).rehearse({"a": np.zeros(2, "f4")})
    assert ran == [[0.0, 0.0]]


def test_inputs_of_other_names_go_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = predictor(Two(), monkeypatch, "plus", "minus").predict({"x": A, "y": B})
    assert {name: array.tolist() for name, array in found.items()} == {"plus": [4, 7], "minus": [-2, -3]}


def test_a_mapping_gives_outputs_by_its_keys_or_those_the_manifest_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(predictor(Named(), monkeypatch).predict({"a": A})) == ["sum", "twice"]
    assert sorted(predictor(Named(), monkeypatch, "twice").predict({"a": A})) == ["twice"]


def test_one_tensor_is_called_output(monkeypatch: pytest.MonkeyPatch) -> None:
    found = predictor(torch.nn.ReLU(), monkeypatch).predict({"x": -A})
    assert found["output"].tolist() == [0, 0]


def test_no_gradients_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = torch.nn.Linear(2, 1)
    assert predictor(linear, monkeypatch).predict({"x": A})["output"].shape == (1,)


def test_bfloat16_goes_in_and_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = predictor(torch.nn.Identity(), monkeypatch).predict({"x": A.astype(ml_dtypes.bfloat16)})["output"]
    assert found.dtype == ml_dtypes.bfloat16
    assert found.tolist() == [1, 2]


def test_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CallerError, match="the input 'x' is text"):
        predictor(torch.nn.Identity(), monkeypatch).predict({"x": np.array([b"a"], dtype=object)})


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch as it is in a predictor that has just begun; afterwards, as it was."""
    before = torch.get_num_threads()
    monkeypatch.setattr(torch, "set_num_threads", torch.set_num_threads)
    monkeypatch.setattr(builtin, "_threads", builtin._Threads())
    yield
    monkeypatch.undo()
    torch.set_num_threads(before)


def shared(*steps: tuple[int, int]) -> list[int]:
    """Return PyTorch's threads after each of these: the number that was set before, and that is set now."""
    found = []
    for told, number in steps:
        builtin.share_threads(told, number)
        found.append(torch.get_num_threads())
    return found


@pytest.mark.usefixtures("threads")
def test_threads_are_shared_unless_they_were_set_unseen() -> None:
    set_unseen = torch.set_num_threads
    assert shared((0, 3), (3, 2), (4, 1)) == [3, 2, 2]
    set_unseen(4)
    assert shared((2, 1), (1, 3)) == [4, 4]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("own", [1, 2, 3])
def test_threads_stay_as_model_code_sets_them_also_to_the_number_of_that_moment(own: int) -> None:
    builtin.warm_up(2)
    torch.set_num_threads(own)
    assert shared((2, 1), (1, 3), (3, 2)) == [own] * 3


@pytest.mark.usefixtures("threads")
def test_threads_are_shared_after_model_code_has_put_back_what_was_there() -> None:
    assert shared((0, 2)) == [2]
    for _ in range(2):
        before = torch.get_num_threads()
        torch.set_num_threads(4)
        torch.set_num_threads(before)
    assert shared((2, 1), (1, 3)) == [1, 3]
