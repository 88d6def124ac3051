"""Names that fit or not, other names by a rule, and names that stand for one parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from torch_images import WORDS, image_file, with_skeleton  # noqa: E402
from trims_client.frameworks import torch as trims_torch  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.core.errors import CallerError  # noqa: E402
from trims.testing import torch_modules  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


def test_names_that_do_not_fit_are_all_listed(tmp_path: Path) -> None:
    state = torch_modules.conv_net().state_dict()
    state["surplus"] = state.pop("head.bias")
    with Weights.map_file(image_file(tmp_path, state)) as weights:
        with pytest.raises(CallerError, match=r"missing from the weights 'head\.bias'; left over 'surplus'"):
            trims_torch.load_into(torch_modules.conv_net(), weights)
        trims_torch.load_into(torch_modules.conv_net(), weights, strict=False)


def test_a_file_with_other_names_is_loaded_by_a_rule_for_them(tmp_path: Path) -> None:
    own = torch_modules.tied_model().eval()
    state = {f"module.{name}": value for name, value in [*own.state_dict().items(), ("positions", own.positions)]}
    empty = torch_modules.tied_model().eval()
    with Weights.map_file(image_file(tmp_path, state)) as weights:
        with pytest.raises(CallerError, match=r"left over 'module\."):
            trims_torch.load_into(torch_modules.tied_model(), weights)
        built = trims_torch.load_into(empty, weights, names=lambda name: name.removeprefix("module."))
        assert torch.equal(built(WORDS), own(WORDS))
        assert built.out.weight is built.embedding.weight
        built.positions += 1  # a buffer is private, whatever it was called
        assert torch.equal(trims_torch.state_dict(weights)["module.positions"], own.positions)


def test_a_rule_that_gives_two_tensors_one_name_is_refused(tmp_path: Path) -> None:
    path = image_file(tmp_path, torch_modules.conv_net().state_dict())
    with Weights.map_file(path) as weights, pytest.raises(CallerError, match=r"calls both '.*' and '.*' of .* 'same'"):
        trims_torch.load_into(torch_modules.conv_net(), weights, names=lambda _: "same")


def test_a_rule_for_names_that_is_none_is_refused_with_the_tensor(tmp_path: Path) -> None:
    path, module = image_file(tmp_path, torch_modules.conv_net().state_dict()), torch_modules.conv_net()
    with Weights.map_file(path) as weights:
        with pytest.raises(CallerError, match=r"`names` is a dict; give a function"):
            trims_torch.load_into(module, weights, names={})  # type: ignore[arg-type]
        for wrong in (7, ["a"], None):
            with pytest.raises(CallerError, match=r"`names` returned .* for '.*'; it must return"):
                trims_torch.load_into(module, weights, names=lambda _, wrong=wrong: wrong)  # type: ignore[misc]


def test_shapes_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path, words = image_file(tmp_path, torch_modules.conv_net(5).state_dict()), r"(?s)this ConvNet.*head\.weight"
    with Weights.map_file(path) as weights, pytest.raises(CallerError, match=words):
        trims_torch.load_into(torch_modules.conv_net(4), weights)


def test_of_two_values_of_a_tied_weight_the_last_counts_as_with_torch(
    tmp_path: Path,
) -> None:
    module = torch_modules.tied_model().eval()
    state_of_two = {**module.state_dict(), "out.weight": torch.full((11, 6), 7.0)}
    module.load_state_dict(state_of_two)
    with Weights.map_file(image_file(tmp_path, state_of_two)) as weights:
        ours = trims_torch.load_into(torch_modules.tied_model().eval(), weights, strict=False)
        assert torch.equal(ours.embedding.weight, module.embedding.weight)
        assert ours.embedding.weight is ours.out.weight


def test_one_name_of_a_tied_weight_is_enough(tmp_path: Path) -> None:
    own, _ = with_skeleton(tmp_path, torch_modules.tied_model)
    state = own.state_dict()
    state.pop("out.weight")
    with Weights.map_file(image_file(tmp_path, state)) as weights:
        ours = trims_torch.load_into(torch_modules.tied_model().eval(), weights)
        assert torch.equal(ours(WORDS), own(WORDS))
