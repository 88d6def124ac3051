"""The format of Hugging Face folders: its files, options, images and places."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import image_of, named, save
from trims_client.frameworks import torch as over_weights
from trims_client.weights import Weights

from trims.core.errors import ArtifactError, NotSupportedError
from trims.formats.base import Artifact, is_in_place_format, is_measurable, states_signature
from trims.formats.plugins import detect
from trims.formats.transformers.converter import TransformersConverter
from trims.image.model_files import described_in
from trims.image.program import TRANSFORMERS, TRANSFORMERS_CODE

if TYPE_CHECKING:
    from pathlib import Path

    from trims.image.plan import Contents

CONVERTER = TransformersConverter()


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return save(named("BertForSequenceClassification"), tmp_path / "bert")


def contents(folder: Path, **options: Any) -> Contents:
    main = folder / "config.json"
    return CONVERTER.contents(Artifact("transformers", CONVERTER.files(main, options), options))


def test_a_configuration_is_detected_among_all_formats(bert: Path) -> None:
    assert detect(bert / "config.json").format == "transformers"
    assert not CONVERTER.claims(bert / "other.json", (bert / "config.json").read_bytes())
    assert is_in_place_format(CONVERTER)
    assert is_measurable(CONVERTER)
    assert states_signature(CONVERTER)


def test_the_files_of_a_folder_are_its_configuration_weights_and_tokenizer(bert: Path) -> None:
    files = CONVERTER.files(bert / "config.json", {})
    assert [each.name for each in files[:2]] == ["config.json", "model.safetensors"]
    assert {each.name for each in files[2:]} == {"tokenizer.json", "tokenizer_config.json"}


def test_in_place_the_program_has_the_files_and_the_tensors_lie_in_the_weights(bert: Path) -> None:
    found = contents(bert)
    assert found.program is not None
    assert found.program.kind == TRANSFORMERS
    described = described_in(found.program)
    assert described is not None
    assert described.task == "text-classification"
    assert described.files["config.json"] == (bert / "config.json").read_bytes()
    assert {each.name for each in found.sources} == set(load_file(bert / "model.safetensors"))
    assert all(each.span is not None for each in found.sources)


def test_an_image_and_the_folder_in_place_make_the_same_module(bert: Path) -> None:
    with Weights.map_file(image_of(bert)) as weights:
        weights.trusted = True
        module = over_weights.module(weights)
        skeleton = weights.program()
        assert skeleton is not None
        loader = skeleton._replace(kind=TRANSFORMERS)
        again = over_weights._made_by_transformers(weights, loader, writable=False)
        tokens = torch.tensor([[2, 7, 8, 3]])
        with torch.inference_mode():
            first, second = module(tokens).logits, again(tokens).logits
        assert type(module) is type(again)
        assert torch.equal(first, second)


# fault (folders): a pushed image with a pickled module -> the module is made from its files
def test_an_image_that_others_made_is_a_module_without_its_pickle(bert: Path) -> None:
    with Weights.map_file(image_of(bert)) as weights:
        weights.foreign = "s3://bucket/bert"
        module = over_weights.module(weights)
        weights.foreign, weights.trusted = "", True
        assert type(module) is type(over_weights.module(weights))
        for name, tensor in load_file(bert / "model.safetensors").items():
            assert torch.equal(module.state_dict()[name], tensor)


def test_the_signature_is_that_of_the_task(bert: Path) -> None:
    found = CONVERTER.signature(Artifact("transformers", CONVERTER.files(bert / "config.json", {}), {}))
    assert [each.name for each in found.outputs] == ["label", "score"]
    options = {"task": "zero-shot-classification"}
    found = CONVERTER.signature(Artifact("transformers", CONVERTER.files(bert / "config.json", options), options))
    assert [each.name for each in found.inputs] == ["text", "candidate_labels"]


@pytest.mark.parametrize(
    "options",
    [{"task": "translation"}, {"task": 3}, {"weights": "a/b"}, {"weights": 3}, {"trust_remote_code": "yes"}, {"x": 1}],
)
def test_options_that_are_none_are_refused(bert: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError):
        contents(bert, **options)


# fault (folders): a missing or doubled shard, a dangling link, a pointer of Git LFS -> `bad_artifact` with the file
def test_an_index_that_names_a_missing_shard_is_refused(bert: Path) -> None:
    (bert / "model.safetensors").rename(bert / "model-00001-of-00002.safetensors")
    names = dict.fromkeys(load_file(bert / "model-00001-of-00002.safetensors"), "model-00001-of-00002.safetensors")
    index = bert / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {**names, "classifier.bias": "model-00002-of-00002.safetensors"}}))
    with pytest.raises(ArtifactError, match="model-00002-of-00002"):
        CONVERTER.files(bert / "config.json", {})
    save_file({"classifier.bias": torch.zeros(3)}, bert / "model-00002-of-00002.safetensors")
    with pytest.raises(ArtifactError, match=r"classifier\.bias.*again"):
        contents(bert)


def test_shards_behind_an_index_make_the_same_image(bert: Path, tmp_path: Path) -> None:
    whole = contents(bert)
    state = load_file(bert / "model.safetensors")
    names = sorted(state)
    (bert / "model.safetensors").unlink()
    placed = {}
    for number, part in enumerate((names[:10], names[10:]), 1):
        shard = f"model-0000{number}-of-00002.safetensors"
        save_file({name: state[name] for name in part}, bert / shard)
        placed.update(dict.fromkeys(part, shard))
    (bert / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    assert {each.name for each in contents(bert).sources} == {each.name for each in whole.sources}
    with Weights.map_file(image_of(bert)) as weights:
        assert torch.equal(over_weights.state_dict(weights)["classifier.bias"], state["classifier.bias"])


def test_pickled_weights_are_taken_where_there_are_no_others(tmp_path: Path) -> None:
    folder = save(named("GPT2LMHeadModel"), tmp_path / "gpt", safe=False)
    assert contents(folder).program is not None
    with Weights.map_file(image_of(folder)) as weights:
        weights.trusted = True
        module = over_weights.module(weights)
        assert module.lm_head.weight is module.transformer.wte.weight  # tied weights stay tied


# fault (folders): two formats of weights that differ -> the safetensors files are served
def test_safetensors_win_over_pickled_weights_that_differ(bert: Path) -> None:
    torch.save({"classifier.bias": torch.full((3,), 7.0)}, bert / "pytorch_model.bin")
    with Weights.map_file(image_of(bert)) as weights:
        assert torch.equal(
            over_weights.state_dict(weights)["classifier.bias"],
            load_file(bert / "model.safetensors")["classifier.bias"],
        )


# fault (folders): `config.json` asks for remote code -> `not_supported` that names `--trust-remote-code`
def test_a_folder_that_names_code_has_a_program_that_runs_code_only_if_it_is_trusted(bert: Path) -> None:
    (bert / "code.py").write_text("")
    for trusted, kind in ((False, TRANSFORMERS), (True, TRANSFORMERS_CODE)):
        program = contents(bert, trust_remote_code=trusted).program
        assert program is not None
        assert program.kind == kind
        described = described_in(program)
        assert described is not None
        assert ("code.py" in described.files) == trusted


# fault (folders): half precision, or another one than the configuration's -> nothing: cast once, as transformers
# casts
def test_half_precision_stays_half_precision(bert: Path) -> None:
    state = {name: each.half() for name, each in load_file(bert / "model.safetensors").items()}
    save_file(state, bert / "model.safetensors")
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    with Weights.map_file(image_of(bert)) as weights:
        weights.trusted = True
        assert {each.dtype for each in over_weights.module(weights).parameters()} == {torch.float16}


def test_a_configuration_of_another_precision_has_the_weights_cast_once(bert: Path) -> None:
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    with Weights.map_file(image_of(bert)) as weights:
        weights.trusted = True
        assert {each.dtype for each in over_weights.module(weights).parameters()} == {torch.bfloat16}
        assert weights.layout.tensors["classifier.weight"].dtype == "BF16"


# fault (folders): quantized weights -> `not_supported` with the method
def test_quantized_weights_are_refused_by_the_name_of_their_method(bert: Path) -> None:
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(NotSupportedError, match="awq"):
        image_of(bert)
