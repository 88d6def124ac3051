"""Folders of Hugging Face models: which files make one model."""

from __future__ import annotations

import codecs
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import ArtifactError, ArtifactNotFoundError, CallerError
from trims.formats.transformers import folder as folders
from trims.formats.transformers.folder import is_model_folder, main_in, read_config, read_folder

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {"model_type": "bert", "architectures": ["BertModel"]}


def make(folder: Path, config: Any = CONFIG, *files: str, **contents: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(contents.get(name, "{}"))
    return folder


def test_a_folder_with_a_configuration_and_weights_is_a_model(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", CONFIG, "model.safetensors")
    assert is_model_folder(folder)
    assert main_in(folder) == folder / "config.json"


@pytest.mark.parametrize(
    ("config", "files"),
    [
        (CONFIG, ()),
        (CONFIG, ("model.onnx",)),
        (CONFIG, ("one.safetensors", "two.safetensors")),
        ({"hidden_size": 3}, ("model.safetensors",)),
    ],
)
def test_another_folder_is_opened_by_its_weights(tmp_path: Path, config: Any, files: tuple[str, ...]) -> None:
    folder = make(tmp_path / "m", config, *files)
    assert not is_model_folder(folder)
    if len(files) == 1:
        assert main_in(folder) == folder / files[0]
    else:
        with pytest.raises(CallerError):
            main_in(folder)
    assert not is_model_folder(tmp_path / "nowhere")


@pytest.mark.parametrize("config", ["[]", "no JSON", "", "\0" * 4096, "[" * 100_000])
def test_a_configuration_that_is_no_object_is_refused(tmp_path: Path, config: str) -> None:
    folder = make(tmp_path / "m", config, "model.safetensors")
    for look in (is_model_folder, main_in):
        with pytest.raises(ArtifactError, match=r"m/config\.json is "):
            look(folder)


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_a_configuration_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    folder = make(tmp_path / "m", CONFIG, "model.safetensors")
    (folder / "config.json").unlink()
    if kind == "fifo":
        os.mkfifo(folder / "config.json")
    elif kind == "folder":
        (folder / "config.json").mkdir()
    else:
        (folder / "config.json").symlink_to("gone")
    with pytest.raises(ArtifactError, match=r"m/config\.json (is no regular file|cannot be read)"):
        is_model_folder(folder)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_configuration_of_generation_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    name = "generation_config.json"
    folder = make(tmp_path / "m", CONFIG, "model.safetensors", name, **{name: content})
    with pytest.raises(ArtifactError, match=r"m/generation_config\.json is "):
        read_folder(folder / "config.json")


def test_safetensors_come_before_pickled_files_and_the_index_before_shards(tmp_path: Path) -> None:
    both = make(tmp_path / "both", CONFIG, "pytorch_model.bin", "model.safetensors")
    assert read_folder(both / "config.json").weights.name == "model.safetensors"
    shards = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    indexed = make(tmp_path / "indexed", CONFIG, *shards, "model.safetensors.index.json")
    assert read_folder(indexed / "config.json").weights.name == "model.safetensors.index.json"


def test_a_variant_is_chosen_by_its_name(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", CONFIG, "model.fp16.safetensors", "model.bf16.safetensors")
    with pytest.raises(CallerError, match="several"):
        read_folder(folder / "config.json")
    assert read_folder(folder / "config.json", "model.fp16.safetensors").weights.name == "model.fp16.safetensors"
    with pytest.raises(ArtifactNotFoundError, match="weights"):
        read_folder(folder / "config.json", "model.safetensors")


def test_describing_files_are_those_that_libraries_read(tmp_path: Path) -> None:
    wanted = (
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt",
        "spiece.model", "source.spm", "generation_config.json", "preprocessor_config.json", "chat_template.jinja",
    )  # fmt: skip
    others = ("README.md", "training_args.bin", "trainer_state.json", "optimizer.pt", "LICENSE.txt", "code.py", "x.png")
    folder = make(tmp_path / "m", CONFIG, "model.safetensors", "model.safetensors.index.json", *wanted, *others)
    found = read_folder(folder / "config.json")
    assert set(found.describing) == {"config.json", *wanted}
    assert not found.embeds
    with_code = read_folder(folder / "config.json", with_code=True)
    assert set(with_code.describing) == {"config.json", "code.py", *wanted}
    assert found.read()["vocab.txt"] == b"{}"


def test_modules_of_sentence_transformers_bring_their_folders(tmp_path: Path) -> None:
    modules = [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
        {"idx": 3, "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    files = ("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin")
    folder = make(tmp_path / "m", CONFIG, "model.safetensors", "modules.json", *files,
                  **{"modules.json": json.dumps(modules)})  # fmt: skip
    found = read_folder(folder / "config.json")
    assert found.embeds
    assert set(found.describing) == {"config.json", "modules.json", *files[:3]}


@pytest.mark.parametrize(
    ("modules", "error"),
    [
        ("{}", ArtifactError),
        ("[]", ArtifactError),
        ("no JSON", ArtifactError),
        ('[{"path": ""}, {"path": "../../etc"}]', ArtifactError),
        ('[{"type": "a"}]', ArtifactError),
        (json.dumps([{"path": ""}] * 100), ArtifactError),
        ('[{"path": "0_Transformer"}]', ArtifactNotFoundError),
    ],
)
def test_modules_that_are_none_are_refused(tmp_path: Path, modules: str, error: type[Exception]) -> None:
    folder = make(tmp_path / "m", CONFIG, "model.safetensors", "modules.json", **{"modules.json": modules})
    with pytest.raises(error, match=r"modules\.json"):
        read_folder(folder / "config.json")


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", CONFIG, "model.safetensors")
    (folder / "tokenizer.json").symlink_to("../../blobs/gone")
    with pytest.raises(ArtifactNotFoundError, match=r"tokenizer\.json.*blobs/gone"):
        read_folder(folder / "config.json")


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 466000\n"
    folder = make(tmp_path / "m", CONFIG, "model.safetensors", "tokenizer.json", **{"tokenizer.json": pointer})
    with pytest.raises(ArtifactError, match=r"tokenizer\.json.*Git LFS"):
        read_folder(folder / "config.json").read()
    (folder / "config.json").write_text(pointer)
    with pytest.raises(ArtifactError, match=r"config\.json.*Git LFS"):
        read_config(folder / "config.json")


@pytest.mark.parametrize("mark", [codecs.BOM_UTF8, codecs.BOM_UTF16_LE])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_file_with_a_mark_that_transformers_does_not_read_is_named(tmp_path: Path, name: str, mark: bytes) -> None:
    folder = make(tmp_path / "m", CONFIG, "model.safetensors", "tokenizer.json", "notes.json")
    text = json.dumps(CONFIG if name == "config.json" else {})
    for each in (name, "notes.json"):
        (folder / each).write_bytes(mark + text.encode("utf-8" if mark == codecs.BOM_UTF8 else "utf-16-le"))
    assert is_model_folder(folder)
    with pytest.raises(ArtifactError, match=rf"m/{name} begins with a byte order mark"):
        read_folder(folder / "config.json").read()


def test_a_configuration_without_the_type_of_model_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", {"architectures": ["BertModel"]}, "model.safetensors")
    with pytest.raises(ArtifactError, match=r"m/config\.json has no model_type"):
        read_folder(folder / "config.json")
    make(folder, {"architectures": ["Own"], "auto_map": {"AutoConfig": "c.C"}})
    assert read_folder(folder / "config.json").config["architectures"] == ["Own"]


def test_what_describes_a_model_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path / "m", CONFIG, "model.safetensors", "tokenizer.json", **{"tokenizer.json": "x" * 5000})
    monkeypatch.setattr(folders, "_MOST_BYTES", 4000)
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        read_folder(folder / "config.json")
    monkeypatch.setattr(folders, "_MOST_CONFIG_BYTES", 3)
    with pytest.raises(ArtifactError, match="configuration"):
        read_config(folder / "config.json")
