"""Skeletons are proven: the module that an image gives is the one that its builder and `load_state_dict` give."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch_images import image_file  # noqa: E402
from torch_ways import KINDS, assert_alike, build, loaded, trained  # noqa: E402
from trims_client.frameworks import torch as trims_torch  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.core.errors import ArtifactError  # noqa: E402
from trims.formats.torch.proof import why_other  # noqa: E402
from trims.testing import torch_modules  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

#: Kinds whose loading changes nothing: they keep their skeletons.
HARMLESS = {"Plain", "Counting", "Renamed", "Versioned", "Extra", "LastFirst", "Seeded"}
PAIRS = list(itertools.combinations(KINDS, 2))


def served(folder: Path, state: Any, kinds: list[str], **args: Any) -> tuple[Any, dict[str, Any], str]:
    """Return the module of an image, its program's attributes, and the program's kind."""
    path = image_file(folder, state, module="torch_ways:build", module_args={"kinds": kinds, **args})
    with Weights.map_file(path) as weights:
        program = weights.program()
        assert program is not None
        return trims_torch.module(weights, trust_program=True), dict(program.attributes), program.kind


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_an_image_gives_what_load_state_dict_gives(kinds: tuple[str, ...], tmp_path: Path) -> None:
    state = trained([*kinds]).state_dict()
    found, attributes, kind = served(tmp_path, state, [*kinds])
    assert_alike(found, loaded(state, [*kinds]))
    assert (kind == "torch-skeleton") == HARMLESS.issuperset(kinds)
    assert ("why" in attributes) == (kind == "torch-builder")


def test_a_whole_that_loads_in_its_own_way_gives_the_same_from_an_image(tmp_path: Path) -> None:
    state = trained(["Plain", "Plain"]).state_dict()
    found, attributes, kind = served(tmp_path, state, ["Plain", "Plain"], whole=True)
    assert_alike(found, loaded(state, ["Plain", "Plain"], whole=True))
    assert kind == "torch-builder"
    assert "0.weight has other values than load_state_dict gives it" in attributes["why"]


def test_a_checkpoint_without_versions_is_upgraded_as_alone(tmp_path: Path) -> None:
    state = dict(trained(["Versioned", "Plain"]).state_dict())
    found, _, kind = served(tmp_path, state, ["Versioned", "Plain"])
    assert_alike(found, loaded(state, ["Versioned", "Plain"]))
    assert kind == "torch-builder"
    assert torch.equal(found[0].weight, -state["0.weight"])


def test_an_older_name_that_the_module_knows_is_loaded(tmp_path: Path) -> None:
    state = trained(["Renamed", "Plain"]).state_dict()
    state["0.old"] = state.pop("0.bias")
    found, attributes, _ = served(tmp_path, state, ["Renamed", "Plain"])
    assert_alike(found, loaded(state, ["Renamed", "Plain"]))
    assert "missing '0.bias'; unexpected '0.old'" in attributes["why"]


def test_what_the_module_does_not_load_is_refused(tmp_path: Path) -> None:
    state = trained(["Scaled", "Plain"]).state_dict()
    del state["1.bias"]
    with pytest.raises(ArtifactError, match=r"missing '1\.bias'"):
        served(tmp_path, state, ["Scaled", "Plain"])
    del state["0.weight"]  # which its hook reads
    with pytest.raises(ArtifactError, match=r"missing"):
        served(tmp_path, state, ["Scaled", "Plain"])


@pytest.mark.parametrize(
    "kinds", [("Versioned", "Plain"), ("Versioned", "Scaled"), ("LastFirst", "Plain")], ids="-".join
)
@pytest.mark.parametrize("meta", [False, True])
def test_load_into_gives_what_load_state_dict_gives(kinds: tuple[str, ...], meta: bool, tmp_path: Path) -> None:
    state = trained([*kinds]).state_dict()
    with Weights.map_file(image_file(tmp_path, state)) as weights:
        with torch.device("meta" if meta and "LastFirst" not in kinds else "cpu"):
            module = build([*kinds])
        found = trims_torch.load_into(module, weights).eval()
    assert_alike(found, loaded(state, [*kinds]))


def test_a_state_dict_has_the_versions_of_its_modules(tmp_path: Path) -> None:
    state = trained(["Versioned", "Plain"]).state_dict()
    with Weights.map_file(image_file(tmp_path, state)) as weights:
        found = trims_torch.state_dict(weights)
    assert dict(found._metadata) == dict(state._metadata)
    assert_alike(loaded(found, ["Versioned", "Plain"]), loaded(state, ["Versioned", "Plain"]))


def test_versions_follow_their_modules_to_other_names(tmp_path: Path) -> None:
    whole = torch.nn.Sequential(trained(["Versioned"]))
    with Weights.map_file(image_file(tmp_path, whole.state_dict())) as weights:
        found = trims_torch.load_into(build(["Versioned"]), weights, names=lambda name: name.removeprefix("0."))
    assert torch.equal(found[0].weight, whole[0][0].weight)


def test_shared_values_of_a_plain_module_are_not_copied(tmp_path: Path) -> None:
    path = image_file(tmp_path, trained(["Plain", "Counting"]).state_dict(), module="torch_ways:build",
                      module_args={"kinds": ["Plain", "Counting"]})  # fmt: skip
    with Weights.map_file(path) as weights:
        state = trims_torch.state_dict(weights)
        found = trims_torch.module(weights, trust_program=True)
        assert all(each.data_ptr() == state[name].data_ptr() for name, each in found.named_parameters())


def test_integers_that_are_left_over_are_no_parameters_with_gradients(tmp_path: Path) -> None:
    state = torch.nn.Linear(2, 2).state_dict() | {"left.over": torch.arange(3)}
    how = {"module": "torch.nn:Linear", "module_args": {"in_features": 2, "out_features": 2}, "ignore": ["left.*"]}
    with Weights.map_file(image_file(tmp_path, state, **how)) as weights:
        assert torch.equal(trims_torch.module(weights, trust_program=True).weight, state["weight"])


@pytest.mark.parametrize(
    "kinds", [["LastFirst", "Plain"], ["Scaled", "Followed"], ["Extra", "Versioned"]], ids="-".join
)
def test_a_module_that_was_saved_whole_is_as_torch_unpickles_it(kinds: list[str], tmp_path: Path) -> None:
    wanted = trained(kinds).eval()
    if "Extra" in kinds:
        wanted[0].seen = torch.tensor([5.0, 6.0])
    with Weights.map_file(image_file(tmp_path, wanted, allow_pickle=True)) as weights:
        found = trims_torch.module(weights, trust_program=True)
    assert_alike(found, wanted)


def changed(change: Any) -> tuple[Any, Any]:
    one = torch_modules.tied_model()
    other = copy.deepcopy(one)
    change(other)
    return one, other


def untie(module: Any) -> None:
    module.out.weight = torch.nn.Parameter(module.out.weight.detach().clone())


def turn(module: Any) -> None:
    module.embedding.weight.data = module.embedding.weight.data.t().contiguous().t()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda module: module.train(not module.training), "training is "),
        (lambda module: module.scale.requires_grad_(True), "scale has requires_grad"),
        (lambda module: module.scale.data.add_(1), "scale has other values"),
        (lambda module: module.positions.add_(1), "positions has other values"),
        (lambda module: module.bare.mul_(-0.0), "bare has other values"),
        (lambda module: setattr(module, "calls", module.calls.int()), "calls has dtype"),
        (lambda module: setattr(module, "more", 1), "has the attributes ['more']"),
        (lambda module: setattr(module.embedding, "num_embeddings", 3), "embedding.num_embeddings is 11"),
        (lambda module: module.register_forward_hook(print), "_forward_hooks has 0 entries"),
        (untie, "shared"),
        (turn, "embedding.weight has the strides"),
        (lambda module: setattr(module, "out", torch.nn.Identity()), "out is a Linear"),
    ],
)
def test_each_difference_of_two_modules_is_named(change: Any, words: str) -> None:
    assert words in str(why_other(*changed(change)))


def test_modules_with_everything_that_can_be_held_are_alike(tmp_path: Path) -> None:
    import numpy as np

    class Slotted:
        __slots__ = ("number",)

        def __init__(self) -> None:
            self.number = 3

    def hold() -> Any:
        torch.manual_seed(1)
        module: Any = torch_modules.tied_model()
        module.held = {"list": [1, float("nan"), (2.0, None)], "set": {1, 2}, "array": np.arange(3.0)}
        module.call = functools.partial(module.forward, words=torch.ones(2))
        module.slotted, module.itself, module.dtype = Slotted(), module, torch.float16
        return module

    assert why_other(hold(), hold()) is None
    one, other = hold(), hold()
    other.slotted.number = 4
    assert why_other(one, other) == "slotted.number is 3 in the image and 4 when it is loaded"
