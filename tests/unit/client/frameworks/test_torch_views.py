"""State dicts over an image: views, in row-major order, with the versions of their modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file

from torch_images import image_file  # noqa: E402
from trims_client.frameworks._torch_views import state_dict  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.core.errors import ArtifactError  # noqa: E402
from trims.formats.base import Artifact  # noqa: E402
from trims.formats.safetensors.converter import SafetensorsConverter  # noqa: E402
from trims.image.state_versions import STATE_VERSIONS  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


def test_versions_come_with_the_state_dict_and_are_not_shared_by_two_of_them(tmp_path: Path) -> None:
    state = torch.nn.Sequential(torch.nn.BatchNorm1d(2)).state_dict()
    with Weights.map_file(image_file(tmp_path, state)) as weights:
        first, second = state_dict(weights), state_dict(weights)
        assert dict(first._metadata) == dict(state._metadata) == {"": {"version": 1}, "0": {"version": 2}}
        first._metadata["0"]["version"] = 3
        assert second._metadata["0"] == {"version": 2}


def test_a_checkpoint_without_versions_gives_none(tmp_path: Path) -> None:
    with Weights.map_file(image_file(tmp_path, {"w": torch.ones(2)})) as weights:
        assert not hasattr(state_dict(weights), "_metadata")


def test_versions_that_are_none_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"w": torch.ones(2)}, path, {STATE_VERSIONS: "[3]"})
    plan = SafetensorsConverter().plan(Artifact("safetensors", (path,)))
    (tmp_path / "m.image").write_bytes(bytes(plan.nbytes))
    with (tmp_path / "m.image").open("r+b") as file:
        plan.write(file.fileno())
    with Weights.map_file(tmp_path / "m.image") as weights, pytest.raises(ArtifactError, match="versions of modules"):
        state_dict(weights)


def test_a_tensor_that_was_saved_channels_last_is_row_major(tmp_path: Path) -> None:
    saved = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    with Weights.map_file(image_file(tmp_path, {"w": saved})) as weights:
        found = state_dict(weights)["w"]
        assert found.is_contiguous()
        assert torch.equal(found, saved)
