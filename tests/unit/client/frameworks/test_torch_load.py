"""Loading into a module that is there: as `load_state_dict` loads, on views where nothing else is asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from torch_images import image_file  # noqa: E402
from torch_ways import assert_alike, build, loaded, trained  # noqa: E402
from trims_client.frameworks._torch_load import load  # noqa: E402
from trims_client.frameworks._torch_views import state_dict  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.core.errors import CallerError  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


def test_modules_that_take_tensors_as_they_are_lie_on_views(tmp_path: Path) -> None:
    with Weights.map_file(image_file(tmp_path, trained(["Plain", "Plain"]).state_dict())) as weights:
        module, state = load(build(["Plain", "Plain"]), weights, writable=False), state_dict(weights)
    assert all(each.data_ptr() == state[name].data_ptr() for name, each in module.named_parameters())


@pytest.mark.parametrize("kind", ["Written", "Halved"])
def test_a_module_that_writes_as_it_loads_leaves_the_weights_as_they_are(kind: str, tmp_path: Path) -> None:
    state = trained([kind, "Plain"]).state_dict()
    with Weights.map_file(image_file(tmp_path, state)) as weights:
        module = load(build([kind, "Plain"]), weights, writable=False).eval()
        assert torch.equal(state_dict(weights)["0.weight"], state["0.weight"])
    assert_alike(module, loaded(state, [kind, "Plain"]))


@pytest.mark.parametrize("kind", ["Scaled", "Written", "Halved", "Counting"])
def test_a_module_without_memory_gets_what_assigning_gives(kind: str, tmp_path: Path) -> None:
    state = trained([kind]).state_dict()
    with Weights.map_file(image_file(tmp_path, state)) as weights:
        with torch.device("meta"):
            module = build([kind])
        load(module, weights, writable=False)
    with torch.device("meta"):
        wanted = build([kind])
    wanted.load_state_dict({name: each.clone() for name, each in state.items()}, assign=True)
    assert_alike(module, wanted)


def test_weights_that_a_module_with_a_way_of_its_own_refuses_are_named(tmp_path: Path) -> None:
    state = trained(["Counting", "Plain"]).state_dict()
    del state["1.bias"]
    words = re.escape("the weights of ") + ".*do not fit this Sequential: .*1.bias"
    with Weights.map_file(image_file(tmp_path, state)) as weights, pytest.raises(CallerError, match="(?s)" + words):
        load(build(["Counting", "Plain"]), weights, writable=False)
    with Weights.map_file(image_file(tmp_path, state)) as weights:
        load(build(["Counting", "Plain"]), weights, writable=False, strict=False)
