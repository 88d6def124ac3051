"""Which modules load in a way of their own is seen, and tensors get the strides that a module's have."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch_ways import KINDS, build, trained  # noqa: E402

from trims.image.torch_loading import (  # noqa: E402
    complete_tied,
    load_copies,
    own_loading,
    restride,
    strides_of,
    tied_names,
    with_strides,
)
from trims.testing import torch_modules  # noqa: E402


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "make", ["conv_net", "tied_model", "weight_normed", "weight_normed_by_hooks", "spectrally_normed"]
)
def test_modules_of_torch_take_tensors_as_they_are(make: str) -> None:
    assert own_loading(getattr(torch_modules, make)()) == ""


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"Plain", "LastFirst", "Seeded"}))
def test_a_way_of_its_own_is_named(kind: str) -> None:
    assert kind in own_loading(build(["Plain", kind]))


def test_a_hook_and_a_method_given_to_one_module_are_seen() -> None:
    hooked, patched = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    hooked.register_load_state_dict_post_hook(functools.partial(lambda *_: None))
    assert own_loading(torch.nn.Sequential(hooked)) == "a hook of Linear"
    patched._load_from_state_dict = lambda *_: None
    assert own_loading(patched) == "Linear._load_from_state_dict"
    assert own_loading(build(["Plain"], whole=True)) == "Whole.load_state_dict"


def test_copies_are_loaded_without_what_is_ignored_and_with_all_tied_names() -> None:
    wanted, module = torch_modules.tied_model(), torch_modules.tied_model()
    state = dict(wanted.state_dict())
    del state["out.weight"]
    load_copies(module, {**state, "left.over": torch.ones(1)}, ignore=["left.*"])
    assert torch.equal(module.out.weight, wanted.out.weight)
    with pytest.raises(RuntimeError, match=r"left\.over"):
        load_copies(module, {**state, "left.over": torch.ones(1)})


def test_names_of_tied_parameters_get_the_last_that_is_known() -> None:
    tied = tied_names(torch_modules.tied_model())
    tensors: dict[str, Any] = {"out.weight": 1}
    complete_tied(tensors, tied)
    assert tensors == {"out.weight": 1, "embedding.weight": 1}


@pytest.mark.parametrize(
    "made",
    [
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.rand(4, 1, 3, 3).to(memory_format=torch.channels_last),
        torch.rand(2, 3).t(),
        torch.rand(3).expand(4, 3),
        torch.rand(2, 8)[:, ::2],
        torch.rand(4, 6, dtype=torch.float64)[1:3],
        torch.arange(6).reshape(1, 6).expand(1, -1),
    ],
)
def test_a_row_major_copy_gets_the_strides_of_its_original(made: Any) -> None:
    strides = strides_of([("x", made)]).get("x", list(made.stride()))
    found = with_strides(made.contiguous().reshape(made.shape), strides)
    assert (found.shape, found.stride(), found.dtype) == (made.shape, made.stride(), made.dtype)
    assert torch.equal(found, made)


def test_lengths_of_one_cost_no_copy() -> None:
    tensor = torch.rand(4, 1, 3, 3)
    assert with_strides(tensor, (9, 1, 3, 1)).data_ptr() == tensor.data_ptr()


def test_row_major_and_empty_tensors_and_other_values_have_no_strides_to_keep() -> None:
    assert strides_of([("a", torch.rand(2, 3)), ("b", torch.empty(0, 3).t()), ("c", {"extra": "state"})]) == {}


def test_parameters_stay_parameters_with_other_strides() -> None:
    first = torch.nn.Parameter(torch.rand(2, 3), requires_grad=False)
    tensors = [first, torch.rand(2, 3), torch.rand(1)]
    restride(tensors, ["a", "b", "c"], {"a": [1, 2], "b": [1, 2]})
    assert [each.stride() for each in tensors] == [(1, 2), (1, 2), (1,)]
    assert isinstance(tensors[0], torch.nn.Parameter)
    assert not tensors[0].requires_grad
    assert torch.equal(tensors[0], first)


def test_trained_modules_differ_from_new_ones() -> None:
    assert not torch.equal(trained(["Plain"])[0].weight, build(["Plain"])[0].weight)
