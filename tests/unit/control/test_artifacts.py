"""From a path that a user typed to a manifest: the file with the weights, and a name that says which model it is."""

from __future__ import annotations

import hashlib
import json
import os
import string
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.control.artifacts import _name_for, manifest_for
from trims.core.errors import ArtifactError, ArtifactNotFoundError, CallerError, NotSupportedError
from trims.formats.folders import WEIGHTS as _WEIGHTS
from trims.formats.transformers.folder import main_in
from trims.manifests.manifest import parse_manifest


def made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Bert Base.v2.safetensors", "bert-base"),
        ("_hidden_.npz", "hidden"),
        ("resnet/model.onnx", "resnet"),
        ("resnet/pytorch_model.bin", "resnet"),
        ("models--org--tiny-gpt/snapshots/abc123/model.safetensors", "tiny-gpt"),
        ("models--org--tiny-gpt/snapshots/abc123/encoder.safetensors", "encoder"),
    ],
)
def test_a_model_is_called_by_its_file_or_by_its_folder_where_the_file_says_nothing(
    tmp_path: Path, file: str, name: str
) -> None:
    main = made(tmp_path / file)
    assert manifest_for(main, None) == {"name": name, "artifact": {"path": str(main)}}
    assert manifest_for(main, "mine")["name"] == "mine"


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "resnet" / "model.onnx")
    monkeypatch.chdir(tmp_path / "resnet")
    wanted = {"name": "resnet", "artifact": {"path": str(tmp_path / "resnet" / "model.onnx")}}
    assert manifest_for(Path("model.onnx"), None) == wanted
    assert manifest_for(Path(), None) == wanted


def test_of_a_folder_the_first_known_name_is_taken(tmp_path: Path) -> None:
    for name in reversed(_WEIGHTS):
        made(tmp_path / name)
        assert manifest_for(tmp_path, "m")["artifact"]["path"] == str(tmp_path / name)


def test_a_folder_without_weights_and_a_path_to_nothing_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    made(tmp_path / "optimizer.bin")
    with pytest.raises(CallerError, match=r"holds none of model\.safetensors.*; name the file with the weights itself"):
        manifest_for(tmp_path, None)
    with pytest.raises(ArtifactNotFoundError, match="gone does not exist"):
        manifest_for(tmp_path / "gone", None)


@pytest.mark.parametrize(
    "name",
    [
        "consolidated.pth",
        "model.fp16.safetensors",
        "adapter_model.bin",
        "net-symbol.json",
        "model.safetensors.index.fp16.json",
    ],
)
def test_of_a_folder_with_one_file_of_weights_that_file_is_taken_whatever_its_name(tmp_path: Path, name: str) -> None:
    for other in ("training_args.bin", "optimizer.pt", "rng_state_0.pth", name):
        made(tmp_path / name)
        made(tmp_path / other)
    (tmp_path / "config.json").write_text("{}")
    assert manifest_for(tmp_path, "m")["artifact"]["path"] == str(tmp_path / name)


# fault (folders): an adapter (LoRA) -> `not_supported` with the model to merge it into
@pytest.mark.parametrize("config", [None, {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}], ids=str)
@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_is_refused_with_the_model_that_it_belongs_to(
    tmp_path: Path, config: dict[str, object] | None, weights: str
) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base", "peft_type": "LORA"}')
    main = made(tmp_path / weights)
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    for look in (lambda: manifest_for(tmp_path, "m"), lambda: main_in(tmp_path)):
        with pytest.raises(NotSupportedError, match=r"adapter of org/base .*merge it into that .*merge_and_unload"):
            look()
    assert manifest_for(main, "m")["artifact"] == {"path": str(main)}


@pytest.mark.parametrize("content", ["{", "[]", '{"base_model_name_or_path": 3}'])
def test_an_adapter_that_says_no_model_is_refused_all_the_same(tmp_path: Path, content: str) -> None:
    (tmp_path / "adapter_config.json").write_text(content)
    made(tmp_path / "adapter_model.safetensors")
    with pytest.raises(NotSupportedError, match="adapter of another model"):
        manifest_for(tmp_path, "m")


def test_the_weights_of_a_model_beside_an_adapter_are_taken(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    main = made(tmp_path / "model.safetensors")
    made(tmp_path / "adapter_model.safetensors")
    assert manifest_for(tmp_path, "m")["artifact"] == {"path": str(main)}


def test_of_a_folder_with_shards_their_index_is_taken(tmp_path: Path) -> None:
    shards = [f"m-0000{number}-of-00002.bin" for number in (1, 2)]
    for name in shards:
        made(tmp_path / name)
    with pytest.raises(CallerError, match=r"shards and no index .*m-00001-of-00002\.bin, m-00002-of-00002\.bin"):
        manifest_for(tmp_path, "m")
    made(tmp_path / "m.bin.index.json")
    assert manifest_for(tmp_path, "m")["artifact"]["path"] == str(tmp_path / "m.bin.index.json")


def test_of_a_folder_with_several_files_of_weights_none_is_chosen(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.pt"):
        made(tmp_path / name)
    with pytest.raises(CallerError, match=r"several files of weights; name one itself: a\.safetensors, b\.pt"):
        manifest_for(tmp_path, None)


def test_a_state_key_becomes_an_option(tmp_path: Path) -> None:
    main = made(tmp_path / "m.pt")
    assert manifest_for(main, "m", {"state_key": "net"})["artifact"] == {
        "path": str(main),
        "options": {"state_key": "net"},
    }


@pytest.mark.parametrize("where", ["file", "folder", "in the folder"])
def test_a_path_that_is_no_utf_8_is_refused_by_name(tmp_path: Path, where: str) -> None:
    odd = os.fsdecode(b"m\xff")
    main = made(tmp_path / odd / "x.npz" if where == "folder" else tmp_path / f"{odd}.npz")
    given = {"file": main, "folder": main.parent, "in the folder": tmp_path}[where]
    with pytest.raises(CallerError, match=r"m\\udcff.* is not UTF-8.*rename"):
        manifest_for(given, "m")


@given(st.text(string.ascii_letters + string.digits + " _-+()", min_size=1, max_size=100))
def test_any_latin_file_name_gives_a_name_that_a_manifest_may_have(stem: str) -> None:
    name = _name_for(Path("/models/x7") / f"m{stem}.npz")
    assert parse_manifest({"name": name, "artifact": {"path": "/m.npz"}}, "").name == name


def test_a_folder_of_a_hugging_face_model_is_one_model_of_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "My Model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["BertForMaskedLM"], "model_type": "bert"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    made = manifest_for(folder, None)
    assert made["name"] == "my-model"
    assert made["framework"] == {"name": "transformers"}
    artifact = made["artifact"]
    assert artifact["path"] == str(folder)
    assert artifact["options"] == {"task": "fill-mask"}
    assert artifact["sha256"] == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("config.json", "model.safetensors", "tokenizer.json")
    }
    assert parse_manifest(made).name == "my-model"
    other = manifest_for(folder, "m", {"task": "feature-extraction", "trust_remote_code": True})
    assert other["artifact"]["options"] == {"task": "feature-extraction", "trust_remote_code": True}


@pytest.mark.parametrize(
    ("name", "options"),
    [("folder", {"task": "nothing"}), ("folder", {"state_key": "net"}), ("file", {"task": "fill-mask"})],
)
def test_an_option_of_another_artifact_is_refused(tmp_path: Path, name: str, options: dict[str, str]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertForMaskedLM"], "model_type": "bert"}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    artifact = tmp_path if name == "folder" else tmp_path / "model.safetensors"
    with pytest.raises(CallerError, match=next(iter(options)).replace("_", "[_-]")):
        manifest_for(artifact, "m", options)


@pytest.mark.parametrize("content", [b"{", b"[]", b"", bytes(3 << 20)])
def test_a_folder_whose_configuration_is_none_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    made(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"config\.json is "):
        manifest_for(tmp_path, "m")


def test_a_configuration_of_no_model_leaves_the_tensors(tmp_path: Path) -> None:
    weights = made(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    assert manifest_for(tmp_path, "m") == {"name": "m", "artifact": {"path": str(weights)}}


def test_an_architecture_without_a_task_needs_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertForTomorrow"], "model_type": "bert"}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(CallerError, match="--task"):
        manifest_for(tmp_path, None)
    assert manifest_for(tmp_path, None, {"task": "fill-mask"})["artifact"]["options"] == {"task": "fill-mask"}


@pytest.mark.parametrize(("there", "named"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_a_name_in_another_form_of_unicode_is_named_as_it_is(tmp_path: Path, there: str, named: str) -> None:
    name = "mod\u00e8le.npz"
    made(tmp_path / unicodedata.normalize(there, name))  # type: ignore[arg-type]
    with pytest.raises(ArtifactNotFoundError) as caught:
        manifest_for(tmp_path / unicodedata.normalize(named, name), None)  # type: ignore[arg-type]
    assert ascii(unicodedata.normalize(there, name)) in str(caught.value)  # type: ignore[arg-type]
