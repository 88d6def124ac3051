"""Modules of Hugging Face models over tensors that are there already."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tiny_models import named, save

from trims.core.errors import ArtifactError, NotSupportedError
from trims.formats.transformers.folder import read_folder
from trims.image import transformers_models
from trims.image.model_files import Described
from trims.image.transformers_models import buffers_of, folder_of, library, make_module

if TYPE_CHECKING:
    from pathlib import Path

State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[State, dict[str, bytes]]:
    folder = save(named("BertForSequenceClassification"), tmp_path_factory.mktemp("bert"))
    return load_file(folder / "model.safetensors"), read_folder(folder / "config.json").read()


def described(files: dict[str, bytes], task: str = "text-classification", **fields: Any) -> Described:
    config = {**json.loads(files["config.json"]), **fields}
    return Described(task, {**files, "config.json": json.dumps(config).encode()})


def test_the_modules_tensors_are_those_that_were_given(bert: tuple[State, dict[str, bytes]]) -> None:
    state, files = bert
    module, unused = make_module(state, described(files), "m")
    assert type(module).__name__ == "BertForSequenceClassification"
    assert not module.training
    assert not unused
    places = {each.data_ptr() for each in state.values()}
    assert all(each.data_ptr() in places for each in module.parameters())


def test_the_values_of_a_module_without_trained_weights_are_no_accident(bert: tuple[State, dict[str, bytes]]) -> None:
    """The pooler is not used for features, and not in every file."""
    state = {name: each for name, each in bert[0].items() if "pooler" not in name}
    before = torch.get_rng_state()
    first, unused = make_module(state, described(bert[1], "feature-extraction"), "m")
    second, _ = make_module(state, described(bert[1], "feature-extraction"), "m")
    assert torch.equal(first.pooler.dense.weight, second.pooler.dense.weight)
    assert unused == {"classifier.weight", "classifier.bias"}
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_that_lack_what_the_task_needs_are_refused_by_name(bert: tuple[State, dict[str, bytes]]) -> None:
    with pytest.raises(ArtifactError, match=r"cls\.predictions\.transform\.dense\.weight"):
        make_module(bert[0], described(bert[1], "fill-mask"), "m")


def test_a_configuration_that_lies_about_sizes_is_refused(bert: tuple[State, dict[str, bytes]]) -> None:
    with pytest.raises(ArtifactError, match="does not fit"):
        make_module(bert[0], described(bert[1], hidden_size=64), "m")


@pytest.mark.parametrize("number", [1, 0, -1])
@pytest.mark.parametrize("task", ["text-classification", "feature-extraction"])
def test_a_configuration_that_states_fewer_layers_is_refused(
    bert: tuple[State, dict[str, bytes]], task: str, number: int
) -> None:
    with pytest.raises(ArtifactError, match=rf"fewer layers .*encoder\.layer\.{max(number, 0)}\.attention"):
        make_module(bert[0], described(bert[1], task, num_hidden_layers=number), "m")


@pytest.mark.parametrize("task", ["text-classification", "feature-extraction"])
def test_layers_are_counted_whatever_the_prefix_of_the_names(bert: tuple[State, dict[str, bytes]], task: str) -> None:
    state = {name.removeprefix("bert."): each for name, each in bert[0].items()}
    make_module(state, described(bert[1], task), "m")
    with pytest.raises(ArtifactError, match="fewer layers"):
        make_module(state, described(bert[1], task, num_hidden_layers=1), "m")


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("GPT2LMHeadModel", {"n_layer": 1}),
        ("ViTForImageClassification", {"num_hidden_layers": 1}),
        ("T5ForConditionalGeneration", {"num_layers": 1}),
        ("BartForConditionalGeneration", {"decoder_layers": 1}),
    ],
)
def test_layers_of_every_list_are_counted(tmp_path: Path, kind: str, fields: dict[str, int]) -> None:
    folder = save(named(kind), tmp_path / "m")
    state, files = load_file(folder / "model.safetensors"), read_folder(folder / "config.json").read()
    with pytest.raises(ArtifactError, match="fewer layers"):
        make_module(state, described(files, named(kind).task, **fields), "m")


def test_other_tensors_that_a_task_does_not_use_are_no_layers(bert: tuple[State, dict[str, bytes]]) -> None:
    others = {name: torch.zeros(1) for name in ("head.7.weight", "layer.9.weight", "bert.encoder.layer.mine", "9")}
    _, unused = make_module({**bert[0], **others}, described(bert[1]), "m")
    assert unused == set(others)


def test_a_configuration_of_generation_that_cannot_be_used_is_named(bert: tuple[State, dict[str, bytes]]) -> None:
    files = {**bert[1], "generation_config.json": b"{"}
    with pytest.raises(ArtifactError, match=r"^m: its generation_config\.json") as refused:
        make_module(bert[0], described(files), "m")
    assert "trims-model-" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "of-tomorrow"}, "of-tomorrow"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"model_type": "mine", "auto_map": {"AutoConfig": "c.C", "AutoModel": "m.M"}}, "trust_remote_code"),
    ],
)
def test_an_architecture_that_cannot_be_made_is_refused_by_name(
    bert: tuple[State, dict[str, bytes]], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(NotSupportedError, match=words) as refused:
        make_module(bert[0], described(bert[1], **fields), "m")
    assert "trims-model-" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (("{", "\ufeff{"), ArtifactError, r"^m does not fit .*file at 'config\.json' is not a valid JSON"),
        (("model_type", "x"), NotSupportedError, r"^m: transformers .*Unrecognized model in the model's folder\."),
    ],
)
def test_a_configuration_that_the_library_does_not_take_is_no_temporary_file(
    bert: tuple[State, dict[str, bytes]], change: tuple[str, str], error: type[Exception], words: str
) -> None:
    files = {**bert[1], "config.json": bert[1]["config.json"].decode().replace(*change, 1).encode()}
    with pytest.raises(error, match=words) as refused:
        make_module(bert[0], Described("text-classification", files), "m")
    assert "trims-model-" not in str(refused.value)


def test_a_task_that_the_architecture_has_not_is_refused(bert: tuple[State, dict[str, bytes]]) -> None:
    with pytest.raises(NotSupportedError, match="image-classification"):
        make_module(bert[0], described(bert[1], "image-classification"), "m")


def test_a_library_that_is_missing_or_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.30.0")
    with pytest.raises(NotSupportedError, match=r"4\.30\.0"):
        library()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(NotSupportedError, match="pip install"):
        library()


def test_settings_of_the_library_are_as_before(bert: tuple[State, dict[str, bytes]]) -> None:
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    make_module(bert[0], described(bert[1]), "m")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_files_lie_in_a_folder_for_the_block(tmp_path: Path) -> None:
    with folder_of({"a/b.json": b"1", "c": b"2"}) as folder:
        place = tmp_path.__class__(folder)
        assert (place / "a" / "b.json").read_bytes() == b"1"
    assert not place.exists()


def test_buffers_of_a_module_on_meta_are_computed(bert: tuple[State, dict[str, bytes]]) -> None:
    with folder_of(bert[1]) as folder:
        config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        module = transformers.BertForSequenceClassification(config)
    found = buffers_of(module, bert[0])
    assert found["bert.embeddings.position_ids"].tolist() == [list(range(64))]
    assert buffers_of(torch.nn.Linear(1, 1), {}) == {}


def test_code_of_the_folder_runs_only_when_it_is_trusted(
    bert: tuple[State, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = (
        b"from transformers import BertConfig, BertForSequenceClassification\n"
        b"class C(BertConfig):\n    model_type = 'mine'\n"
        b"class M(BertForSequenceClassification):\n    config_class = C\n    mine = True\n"
    )
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    auto = {"AutoConfig": "code.C", "AutoModelForSequenceClassification": "code.M"}
    own = described({**bert[1], "code.py": code}, model_type="mine", auto_map=auto)
    with pytest.raises(NotSupportedError, match="trust_remote_code"):
        make_module(bert[0], own, "m")
    module, _ = make_module(bert[0], own, "m", with_code=True)
    assert module.mine
    assert transformers_models.auto_class("text-classification", {}) == "AutoModelForSequenceClassification"
