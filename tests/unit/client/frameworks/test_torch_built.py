"""Whether weights fit a module that a session built: judged as a converter judges it, and told in its words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch_images import MODULES, image_file  # noqa: E402
from trims_client.frameworks._torch_built import check_fits  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.core.errors import ArtifactError  # noqa: E402
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
