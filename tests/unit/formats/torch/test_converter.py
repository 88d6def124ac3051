"""PyTorch checkpoints become images: what is read, and what is refused."""

from __future__ import annotations

import zipfile
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from torch_files import CONVERTER, MODULES, Trap, assert_equal, image_of, saved, tensors_of

torch = pytest.importorskip("torch")

from trims_client.frameworks.torch import state_dict  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.core.errors import ArtifactError, NotInPlaceError  # noqa: E402
from trims.formats.base import Artifact  # noqa: E402
from trims.testing import torch_modules  # noqa: E402
from trims.testing.converters import artifact_at, convert  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model"])
def test_training_checkpoints_are_unwrapped_and_what_is_left_out_is_noted(tmp_path: Path, wrapper: str) -> None:
    state = {"w": torch.ones(2), "note": "hello"}
    path = saved(tmp_path, {"epoch": 3, wrapper: state, "optimizer": {"step": torch.ones(1)}})
    view = image_of(path)
    assert list(view.layout.tensors) == ["w"]
    assert view.metadata == {"ignored": "epoch, optimizer, note"}


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "is_refused"),
    [
        ("best_acc1", torch.tensor(0.9), False),
        ("best_acc1", torch.ones(2), True),
        ("logit_scale", torch.tensor(0.07), True),
        ("ema", {"w": torch.ones(2)}, True),
        ("optimizer", {"state": {0: {"step": torch.ones(2)}}}, False),
    ],
)
def test_beside_a_state_dict_a_metric_and_an_optimizer_may_be_left_out(
    tmp_path: Path, name: str, value: Any, is_refused: bool, in_place: bool
) -> None:
    path = saved(tmp_path, {"state_dict": {"w": torch.ones(2)}, name: value})
    look: Any = CONVERTER.contents if in_place else CONVERTER.plan
    with pytest.raises((ArtifactError, NotInPlaceError), match=name) if is_refused else nullcontext():
        look(Artifact("torch", (path,)))


@pytest.mark.parametrize("in_place", [True, False])
def test_a_checkpoint_whose_weights_have_a_name_of_its_own_is_taken_by_its_state_key(
    tmp_path: Path, in_place: bool
) -> None:
    path = saved(tmp_path, {"net": {"w": torch.ones(2)}, "acc": torch.ones(1)})

    def tensors(**options: Any) -> list[str]:
        if in_place:
            artifact = Artifact("torch", (path,), options)
            return [source.name for source in CONVERTER.contents(artifact).sources]
        return list(image_of(path, **options).layout.tensors)

    with pytest.raises((ArtifactError, NotInPlaceError), match=r"'net' \(a dict of 1 tensors\), 'acc' \(a tensor\)"):
        tensors()
    assert tensors(state_key="net") == ["w"]


def test_a_module_in_a_checkpoint_is_taken_by_its_state_key(tmp_path: Path) -> None:
    path = saved(tmp_path, {"net": torch_modules.conv_net(), "epoch": 3})
    with pytest.raises(ArtifactError, match=r"'net' \(a ConvNet\)"):
        image_of(path, allow_pickle=True)
    view = image_of(path, allow_pickle=True, state_key="net")
    assert list(view.layout.tensors) == list(torch_modules.conv_net().state_dict())
    assert view.metadata["ignored"] == "epoch"


def test_an_empty_state_dict_is_an_empty_image(tmp_path: Path) -> None:
    assert len(image_of(saved(tmp_path, {})).layout) == 0


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, torch.ones(2), {"state_dict": {"a": 1}}, None, {"x": {"w": 1}}])
def test_a_file_without_a_state_dict_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ArtifactError, match=r"m\.pt: neither a state dict nor a dict with one"):
        image_of(saved(tmp_path, value))


def test_a_tensor_under_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="named 7, which is no string"):
        image_of(saved(tmp_path, {7: torch.ones(1)}))


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
def test_code_in_a_checkpoint_does_not_run(tmp_path: Path, zip_format: bool) -> None:
    path = saved(
        tmp_path, {"w": torch.ones(1), "x": Trap(str(tmp_path / "trap"))}, _use_new_zipfile_serialization=zip_format
    )
    with pytest.raises(ArtifactError, match=r"not a checkpoint of tensors only.*allow_pickle: true"):
        image_of(path)
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("options", [{}, {"allow_pickle": False}, {"allow_pickle": True}], ids=str)
def test_code_in_a_checkpoint_runs_only_when_the_manifest_allows_it(tmp_path: Path, options: dict[str, Any]) -> None:
    path = saved(tmp_path, {"w": torch.ones(1), "x": Trap(str(tmp_path / "trap"))})
    allowed = options.get("allow_pickle", False)
    with nullcontext() if allowed else pytest.raises(ArtifactError, match="allow_pickle: true"):
        image_of(path, **options)
    assert (tmp_path / "trap").exists() is allowed


def test_damaged_files_are_artifact_errors(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.ones(1000)})
    data = path.read_bytes()
    for damaged in (
        b"",
        data[:3],
        data[:200],
        data[: len(data) // 2],
        data[:-1],
        b"PK\x03\x04" + bytes(500),
        b"\x80\x02}q\0.",
    ):
        path.write_bytes(damaged)
        with pytest.raises(ArtifactError, match=r"m\.pt"):
            image_of(path)


@pytest.mark.parametrize("of_tensors_only", [True, False])
def test_the_tensors_of_a_compressed_archive_are_those_that_were_saved(of_tensors_only: bool, tmp_path: Path) -> None:
    state = {"w": torch.randn(300, 4), "b": torch.ones(5)}
    path, members = saved(tmp_path, state), {}
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in members.items():
            packed = "/data/" in name or not of_tensors_only
            new.writestr(name, data, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED)
    assert_equal(tensors_of(image_of(path)), state)


@pytest.mark.parametrize("field", [20, 24, 42], ids=["packed length", "length", "offset"])
def test_an_archive_whose_directory_is_wrong_about_a_tensor_is_refused(field: int, tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.ones(1000)})
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02", 0, data.rindex(b"/data/0"))
    data[entry + field] ^= 8
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="torch cannot read it"):
        image_of(path)


def test_a_file_that_changes_between_planning_and_writing_is_noticed(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.ones(1000)})
    plan = CONVERTER.plan(Artifact("torch", (path,)))
    with path.open("r+b") as file:
        file.seek(1500)
        file.write(b"x")
    with pytest.raises(ArtifactError, match="was changed while it was read"):
        plan.write_into(memoryview(bytearray(plan.nbytes)))


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="unknown options mmap"):
        image_of(saved(tmp_path, {}), mmap=True)


def test_a_whole_module_becomes_a_skeleton_only_with_allow_pickle(tmp_path: Path) -> None:
    path = saved(tmp_path, torch_modules.conv_net())
    with pytest.raises(ArtifactError, match="allow_pickle: true"):
        image_of(path)
    program = image_of(path, allow_pickle=True).program()
    assert program is not None
    assert program.attributes["class"].endswith("ConvNet")


def test_it_is_converted_in_a_child_and_the_skeletons_builder_gets_its_arguments(tmp_path: Path) -> None:
    module = torch_modules.conv_net(7)
    path = saved(tmp_path, module.state_dict())
    artifact = artifact_at(path, module=f"{MODULES}:conv_net", module_args={"width": 7})
    with Weights.map_file(convert(artifact, tmp_path / "image")) as weights:
        assert weights.program() is not None
        assert_equal(state_dict(weights), module.state_dict())
