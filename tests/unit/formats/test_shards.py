"""Sharded checkpoints: by their index the whole model, by one shard a refusal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from safetensors_files import safetensors_file

from trims.core.errors import ArtifactError, NotInPlaceError
from trims.formats.base import Artifact
from trims.formats.conversion.conversion import detect
from trims.image.reader import ImageView
from trims.testing.converters import artifact_at

if TYPE_CHECKING:
    from pathlib import Path

    from trims.image.plan import Contents

torch = pytest.importorskip("torch")

WHOLE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.int64), "c": torch.zeros(0, 3)}
SHARDS = ("m-00001-of-00002", "m-00002-of-00002")


def sharded_torch(folder: Path, index: str = "pytorch_model.bin.index.json", **how: Any) -> Path:
    parts = ({"a": WHOLE["a"], "c": WHOLE["c"]}, {"b": WHOLE["b"]})
    for shard, part in zip(SHARDS, parts, strict=True):
        torch.save(part, folder / f"{shard}.bin", **how)
    names = {name: f"{shard}.bin" for shard, part in zip(SHARDS, parts, strict=True) for name in part}
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return folder / index


def image_of(main: Path) -> ImageView:
    chosen = detect(main)
    plan = chosen.plan(Artifact(chosen.format, chosen.files(main, {}), {}))
    memory = bytearray(plan.nbytes)
    plan.write_into(memoryview(memory))
    return ImageView(memoryview(memory).toreadonly())


def contents_of(main: Path) -> Contents:
    chosen: Any = detect(main)
    found: Contents = chosen.contents(Artifact(chosen.format, chosen.files(main, {}), {}))
    return found


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("index", ["pytorch_model.bin.index.json", "pytorch_model.bin.index.fp16.json"])
def test_the_index_of_bin_shards_stands_for_the_whole_model(tmp_path: Path, index: str, zip_format: bool) -> None:
    main = sharded_torch(tmp_path, index, _use_new_zipfile_serialization=zip_format)
    view = image_of(main)
    assert {spec.name: bytes(view.tensor(spec.name)) for spec in view.layout} == {
        name: tensor.numpy().tobytes() for name, tensor in WHOLE.items()
    }


def test_bin_shards_are_served_in_place_as_they_are_converted(tmp_path: Path) -> None:
    main = sharded_torch(tmp_path)
    found = {
        each.name: each.span.file.read(24 if each.name == "a" else 16, each.span.offset)
        for each in contents_of(main).sources
        if each.span is not None and each.name != "c"
    }
    assert found == {name: WHOLE[name].numpy().tobytes() for name in ("a", "b")}


def test_bin_shards_with_much_to_parse_together_are_left_to_a_conversion(tmp_path: Path) -> None:
    tensor = torch.ones(1)
    parts = [{f"{shard}.{number}" + "x" * 200: tensor for number in range(500)} for shard in range(3)]
    for number, part in enumerate(parts):
        torch.save(part, tmp_path / f"{number}.bin")
    names = {name: f"{number}.bin" for number, part in enumerate(parts) for name in part}
    main = tmp_path / "m.bin.index.json"
    main.write_text(json.dumps({"weight_map": names}))
    with pytest.raises(NotInPlaceError, match="too large to be parsed here"):
        contents_of(main)
    assert len(image_of(main).layout) == 1500


def test_the_directories_of_many_bin_shards_are_read_as_little_as_that_of_one_file(tmp_path: Path) -> None:
    large = {f"{number}": torch.ones(1) for number in range(400)}
    names = dict.fromkeys(large, "0.bin")
    torch.save(large, tmp_path / "0.bin")
    main = tmp_path / "m.bin.index.json"
    main.write_text(json.dumps({"weight_map": names}))
    assert len(contents_of(main).sources) == 400
    for number in range(1, 40):
        torch.save({f"x{number}": torch.ones(1)}, tmp_path / f"{number}.bin")
        names[f"x{number}"] = f"{number}.bin"
    main.write_text(json.dumps({"weight_map": names}))
    with pytest.raises(NotInPlaceError, match="zip directory"):
        contents_of(main)


def test_more_bin_shards_than_are_mapped_at_once_are_converted(tmp_path: Path) -> None:
    names = {}
    for number in range(65):
        torch.save({f"x{number}": torch.ones(1)}, tmp_path / f"{number}.bin")
        names[f"x{number}"] = f"{number}.bin"
    main = tmp_path / "m.bin.index.json"
    main.write_text(json.dumps({"weight_map": names}))
    with pytest.raises(NotInPlaceError, match="65 shards"):
        contents_of(main)
    assert len(image_of(main).layout) == 65


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"d": "m-00001-of-00002.bin"}, "'d' should be in m-00001-of-00002.bin and is not"),
        ({"a": "m-00002-of-00002.bin"}, "'a' should be in m-00002-of-00002.bin and is not"),
        ({"d": "gone.bin"}, "gone.bin cannot be read"),
        ({"d": "../gone.bin"}, "which leaves its folder"),
    ],
)
def test_an_index_that_its_bin_shards_do_not_fit_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    main = sharded_torch(tmp_path)
    index = json.loads(main.read_text())
    index["weight_map"].update(change)
    main.write_text(json.dumps(index))
    with pytest.raises(ArtifactError, match=words):
        image_of(main)


@pytest.mark.parametrize("index", ["model.safetensors.index.json", "model.safetensors.index.fp16.json"])
def test_the_index_of_a_variant_names_its_shards(tmp_path: Path, index: str) -> None:
    safetensors_file(tmp_path / "1.safetensors", 3)
    names = image_of(tmp_path / "1.safetensors").layout.tensors
    (tmp_path / index).write_text(json.dumps({"weight_map": dict.fromkeys(names, "1.safetensors")}))
    assert set(image_of(tmp_path / index).layout.tensors) == set(names)


@pytest.mark.parametrize("suffix", ["safetensors", "bin", "fp16.safetensors"])
def test_one_shard_of_several_is_refused_and_the_index_named(tmp_path: Path, suffix: str) -> None:
    main = sharded_torch(tmp_path)
    shard = tmp_path / f"model-00001-of-00002.{suffix}"
    if suffix == "bin":
        shard.write_bytes((tmp_path / f"{SHARDS[0]}.bin").read_bytes())
    else:
        safetensors_file(shard, 2)
    with pytest.raises(ArtifactError, match=r"one of 2 shards .* add the index of all: .*index\.json"):
        artifact_at(shard)
    main.unlink()
    with pytest.raises(ArtifactError, match=rf"fetch their index .* the shards model-00002-of-00002\.{suffix} into"):
        artifact_at(shard)


def test_a_model_of_one_shard_is_whole(tmp_path: Path) -> None:
    artifact_at(safetensors_file(tmp_path / "model-00001-of-00001.safetensors", 2))
    torch.save(WHOLE, tmp_path / "consolidated.00.pth")
    artifact_at(tmp_path / "consolidated.00.pth")


def test_one_part_of_a_model_that_was_split_for_devices_is_refused(tmp_path: Path) -> None:
    for number in range(2):
        torch.save(WHOLE, tmp_path / f"consolidated.0{number}.pth")
    with pytest.raises(ArtifactError, match="one of 2 parts"):
        artifact_at(tmp_path / "consolidated.00.pth")
