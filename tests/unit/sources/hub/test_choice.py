"""The choice of a model's files among those of a repository."""

from __future__ import annotations

import json

import pytest

from trims.core.errors import ArtifactError, ArtifactNotFoundError, NotSupportedError, TrimsError
from trims.sources.hub.choice import complete, wanted

ABOUT = ["config.json", "tokenizer.json"]


def chosen(*files: str, path: str = "", **contents: object) -> list[str]:
    """What is chosen; contents of files that name others, by their name with `_` for what no name may have."""
    written = {name.replace("__", "/"): value for name, value in contents.items()}

    def read(name: str) -> bytes:
        return json.dumps(next(value for key, value in written.items() if name.endswith(key + ".json"))).encode()

    return list(complete(wanted(files, path), read).files)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (["model.safetensors", "pytorch_model.bin", "model.onnx"], "model.safetensors"),
        (["pytorch_model.bin", "model.onnx", "tf_model.h5", "flax_model.msgpack"], "pytorch_model.bin"),
        (["model.onnx", "openvino_model.bin", "rust_model.ot", "model.gguf"], "model.onnx"),
        (["onnx/model.onnx", "onnx/model_quantized.onnx"], "onnx/model.onnx"),
        (["model.fp16.safetensors", "model.safetensors"], "model.safetensors"),
        (["model.fp16.safetensors", "pytorch_model.bin"], "model.fp16.safetensors"),
        (["model.safetensors", "model.safetensors.index.json", "consolidated.safetensors"], "model.safetensors"),
        (["diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin"], "diffusion_pytorch_model.safetensors"),
        (["Llama-3.2-1B.safetensors"], "Llama-3.2-1B.safetensors"),
        (["training_args.bin", "optimizer.bin", "pytorch_model.bin"], "pytorch_model.bin"),
    ],
)
def test_one_set_of_weights_is_chosen_by_rank(weights: list[str], expected: str) -> None:
    assert chosen(*weights, *ABOUT) == sorted([expected, *ABOUT])


@pytest.mark.parametrize("folder", ["", "lora"])
def test_an_adapter_is_refused_before_a_byte_is_fetched(folder: str) -> None:
    start = f"{folder}/" if folder else ""
    files = [f"{start}{name}" for name in ("adapter_config.json", "adapter_model.safetensors", "tokenizer.json")]
    with pytest.raises(NotSupportedError, match=r"adapter of another model.*merge it"):
        chosen(*files, path=folder)
    assert chosen(*files, path=files[1]) == [files[1]]
    assert f"{start}model.safetensors" in chosen(*files, f"{start}model.safetensors", path=folder)


def test_configuration_tokenizers_and_templates_come_with_the_weights() -> None:
    about = [
        "added_tokens.json", "additional_chat_templates/tool.jinja", "chat_template.jinja", "config.json",
        "generation_config.json", "merges.txt", "preprocessor_config.json", "qwen.tiktoken", "spiece.model",
        "special_tokens_map.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt",
    ]  # fmt: skip
    others = [
        "README.md", ".gitattributes", "LICENSE.txt", "requirements.txt", "tf_model.h5.index.json", "model.py",
        "onnx/config.json", "flax_model.msgpack.index.json", "coreml/model.mlpackage", "images/a.png",
    ]  # fmt: skip
    assert chosen("model.safetensors", *about, *others) == sorted(["model.safetensors", *about])


def test_an_index_brings_the_shards_that_it_names_and_no_others() -> None:
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}}
    found = chosen(
        "model.safetensors.index.json", *shards, "model-00001-of-00009.safetensors", "pytorch_model.bin.index.json",
        **{"model.safetensors.index": index},
    )  # fmt: skip
    assert found == sorted([*shards, "model.safetensors.index.json"])


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_an_index_with_a_variant_is_chosen_if_it_is_the_only_one(ending: str) -> None:
    stem = "model" if ending == "safetensors" else "pytorch_model"
    shards = [f"{stem}.fp16-0000{number}-of-00002.{ending}" for number in (1, 2)]
    index = f"{stem}.{ending}.index.fp16"
    weight_map = dict(enumerate(shards))
    assert chosen(f"{index}.json", *shards, **{index: {"weight_map": weight_map}}) == sorted([f"{index}.json", *shards])


def test_shards_without_an_index_are_all_chosen() -> None:
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    assert chosen(*shards, "config.json") == ["config.json", *shards]


def test_folders_that_modules_name_are_chosen_with_their_weights() -> None:
    files = [
        "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin",
        "3_Other/config.json", "config.json", "model.safetensors", "modules.json",
    ]  # fmt: skip
    modules = [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]
    found = chosen(*files, modules=modules)
    assert found == [name for name in files if name not in ("2_Dense/pytorch_model.bin", "3_Other/config.json")]


def test_weights_may_lie_in_a_folder_that_modules_name() -> None:
    files = ["0_Transformer/config.json", "0_Transformer/model.safetensors", "modules.json"]
    assert chosen(*files, modules=[{"path": "0_Transformer"}]) == files
    with pytest.raises(NotSupportedError):
        chosen(*files, modules=[])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("model.gguf", ["model.gguf"]),
        ("pytorch_model.bin", ["pytorch_model.bin"]),
        ("onnx/q.onnx", ["onnx/q.onnx", "onnx/q.onnx_data", "onnx/q.onnx_data_1"]),
        ("onnx", ["onnx/config.json", "onnx/model.onnx"]),
        ("model.safetensors.index.json", ["model-1-of-1.safetensors", "model.safetensors.index.json"]),
    ],
)
def test_a_path_names_a_file_or_a_folder(path: str, expected: list[str]) -> None:
    files = [
        "config.json", "model-1-of-1.safetensors", "model.gguf", "model.safetensors.index.json", "onnx/config.json",
        "onnx/model.onnx", "onnx/q.onnx", "onnx/q.onnx_data", "onnx/q.onnx_data_1", "onnx/q.onnx_database",
        "pytorch_model.bin",
    ]  # fmt: skip
    index = {"weight_map": {"a": "model-1-of-1.safetensors"}}
    assert chosen(*files, path=path, **{"model.safetensors.index": index}) == expected


@pytest.mark.parametrize(
    ("files", "path", "error", "said"),
    [
        (["model.gguf"], "", NotSupportedError, r"model\.gguf"),
        ([], "", NotSupportedError, "no weights"),
        (["a.safetensors", "b.safetensors"], "", NotSupportedError, r"a\.safetensors, b\.safetensors"),
        (["model.fp16.safetensors", "model.bf16.safetensors"], "", NotSupportedError, "2 sets"),
        (["model.safetensors"], "Model.safetensors", ArtifactNotFoundError, r"it has model\.safetensors"),
        (["model.safetensors"], "mod", ArtifactNotFoundError, "mod"),
    ],
)
def test_what_cannot_be_chosen_is_named(files: list[str], path: str, error: type[TrimsError], said: str) -> None:
    with pytest.raises(error, match=said) as raised:
        wanted(files, path)
    assert type(raised.value) is error


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"no json", ArtifactError),
        (b"[]", ArtifactError),
        (b'{"weight_map": {"a": []}}', ArtifactError),
        (b'{"weight_map": {"a": 1}}', ArtifactError),
        (b'{"weight_map": {}}', ArtifactNotFoundError),
        (b'{"weight_map": {"a": "../x.safetensors"}}', ArtifactNotFoundError),
        (b'{"weight_map": {"a": "model-00009-of-00009.safetensors"}}', ArtifactNotFoundError),
        (b"[" * 100_000, ArtifactError),
    ],
)
def test_an_index_that_is_none_is_refused(content: bytes, error: type[TrimsError]) -> None:
    selection = wanted(["model.safetensors.index.json"])
    with pytest.raises(error) as raised:
        selection.read("model.safetensors.index.json", content)
    assert type(raised.value) is error


@pytest.mark.parametrize(
    "content", [b"no json", b"[1]", b'[{"path": 1}]', b"1", json.dumps([{"path": "a"}] * 65).encode()]
)
def test_a_list_of_modules_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(ArtifactError):
        wanted(["model.safetensors", "modules.json"]).read("modules.json", content)
