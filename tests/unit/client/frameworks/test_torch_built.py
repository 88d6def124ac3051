"""Modules that a session built: whether weights fit is judged as a converter judges it, and reported in its words."""

# fault (damage): a module that cannot be pickled -> nothing; sessions call its builder

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch_images import MODULES, image_file, with_skeleton  # noqa: E402
from trims_client.frameworks import torch as trims_torch  # noqa: E402
from trims_client.frameworks._torch_built import check_fits  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.core.errors import ArtifactError, NotSupportedError, PermissionDeniedError  # noqa: E402
from trims.testing import torch_modules  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def state(build: Callable[[], Any] = torch_modules.conv_net, **more: Any) -> dict[str, Any]:
    return {**build().state_dict(), **more}


def without(name: str) -> dict[str, Any]:
    found = state()
    del found[name]
    return found


@pytest.mark.parametrize("kept", ["embedding.weight", "out.weight"])
def test_one_name_of_a_tied_weight_is_enough(kept: str, tmp_path: Path) -> None:
    tied = state(torch_modules.tied_model)
    for name in {"embedding.weight", "out.weight"} - {kept}:
        del tied[name]
    with Weights.map_file(image_file(tmp_path, tied)) as weights:
        assert check_fits(torch_modules.tied_model(), weights, []) == []


@pytest.mark.parametrize("ignore", [[], ["pos*"]])
def test_a_buffer_that_is_in_no_state_dict_keeps_the_modules_own_value(ignore: list[str], tmp_path: Path) -> None:
    other = torch.zeros(5, 1) if not ignore else torch.zeros(7)
    with Weights.map_file(image_file(tmp_path, state(torch_modules.tied_model, positions=other))) as weights:
        assert check_fits(torch_modules.tied_model(), weights, ignore) == ["positions"]


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "another dtype": (
        torch_modules.conv_net, state(lambda: torch_modules.conv_net().half()), "'body.0.weight' is F16"
    ),
    "another shape": (
        torch_modules.conv_net, state(lambda: torch_modules.conv_net(7)), "F32[7, 3, 3, 3], the module has F32[4, "
    ),
    "missing": (torch_modules.conv_net, without("head.bias"), "missing 'head.bias'; unexpected nothing"),
    "left over": (torch_modules.conv_net, state(more=torch.ones(1)), "missing nothing; unexpected 'more'"),
    "extra state": (
        torch_modules.with_extra_state, {"weight": torch.ones(1, 1), "bias": torch.ones(1)}, "_extra_state"
    ),
    "another buffer": (
        torch_modules.tied_model, state(torch_modules.tied_model, positions=torch.ones(2)), "tensor 'positions'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_module_is_refused_as_by_a_converter(case: str, tmp_path: Path) -> None:
    build, saved, words = CASES[case]
    with (
        Weights.map_file(image_file(tmp_path, saved)) as weights,
        pytest.raises(ArtifactError, match=re.escape(words)),
    ):
        check_fits(build(), weights, [])
    with pytest.raises(ArtifactError, match="module"):
        image_file(tmp_path, saved, module=f"{MODULES}:{build.__name__}")


#: Modules that have no skeleton, and an input.
VALUES, IMAGES = torch.linspace(-1, 1, 15).view(5, 3), torch.linspace(-1, 1, 384).view(2, 3, 8, 8)
UNPICKLED: dict[str, tuple[Callable[[], Any], Any]] = {
    "weight_norm": (torch_modules.weight_normed, VALUES),
    "weight_norm by hooks": (torch_modules.weight_normed_by_hooks, VALUES),
    "spectral_norm by hooks": (torch_modules.spectrally_normed, VALUES),
    "a lambda": (torch_modules.with_lambda, IMAGES),
    "a view and a closure": (torch_modules.with_view, VALUES),
}


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("name", UNPICKLED)
def test_a_module_without_a_skeleton_is_built_on_views_and_computes_the_same(
    name: str, writable: bool, tmp_path: Path
) -> None:
    build, given = UNPICKLED[name]
    own, image = with_skeleton(tmp_path, build)
    with Weights.map_file(image) as weights, torch.inference_mode():
        program = weights.program()
        assert program is not None
        assert program.kind == "torch-builder"
        made = trims_torch.module(weights, trust_program=True, writable=writable)
        assert not made.training
        assert torch.equal(made(given), own(given))
        shared = torch.frombuffer(weights.data(), dtype=torch.uint8)
        places = {shared.data_ptr() + spec.offset for spec in weights.layout}
        assert writable or {each.data_ptr() for each in made.parameters()} <= places


def test_a_wav2vec2_of_transformers_is_built_on_views_and_computes_the_same(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    own, image = with_skeleton(tmp_path, torch_modules.tiny_wav2vec2)
    sound = torch.linspace(-1, 1, 400).view(1, 400)
    with Weights.map_file(image) as weights, torch.inference_mode():
        made = trims_torch.module(weights, trust_program=True)
        assert torch.equal(made(sound).last_hidden_state, own(sound).last_hidden_state)


def test_what_weight_norm_keeps_is_right_before_the_first_pass(tmp_path: Path) -> None:
    own, image = with_skeleton(tmp_path, torch_modules.weight_normed_by_hooks)
    own(VALUES)
    with Weights.map_file(image) as weights:
        made: Any = trims_torch.module(weights, trust_program=True)
        assert torch.equal(made[0].weight, own[0].weight)


def test_names_that_weight_norm_had_before_are_renamed_by_the_module(tmp_path: Path) -> None:
    own, _ = with_skeleton(tmp_path, torch_modules.weight_normed_by_hooks)
    image = image_file(tmp_path, own.state_dict(), module=f"{MODULES}:weight_normed")
    with Weights.map_file(image) as weights, torch.inference_mode():
        assert set(weights.layout.tensors) == set(own.state_dict())
        made = trims_torch.module(weights, trust_program=True)
        assert torch.allclose(made(VALUES), own(VALUES))


def test_an_image_that_names_a_builder_is_trusted_like_one_with_a_skeleton(tmp_path: Path) -> None:
    _, image = with_skeleton(tmp_path, torch_modules.weight_normed)
    with Weights.map_file(image) as weights, pytest.raises(PermissionDeniedError, match="torch builder"):
        trims_torch.module(weights, trust_program=False)


def test_a_builder_that_is_not_here_is_told_without_a_place_where_it_would_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, image = with_skeleton(tmp_path, torch_modules.weight_normed)
    monkeypatch.delattr(torch_modules, "weight_normed")
    with Weights.map_file(image) as weights, pytest.raises(NotSupportedError) as caught:
        trims_torch.module(weights, trust_program=True)
    assert "place='cpu'" not in str(caught.value)


@pytest.mark.parametrize("build", [torch_modules.weight_normed, torch_modules.with_lambda])
def test_weights_that_do_not_fit_a_module_without_a_skeleton_are_refused(
    build: Callable[[], Any], tmp_path: Path
) -> None:
    wrong = {**build().state_dict(), "more": torch.ones(1)}
    with pytest.raises(ArtifactError, match="missing nothing; unexpected 'more'"):
        image_file(tmp_path, wrong, module=f"{MODULES}:{build.__name__}")
