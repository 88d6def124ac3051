"""Images of Hugging Face models: which tensors of the files the module uses, and which the library made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import image_of, named, save
from trims_client.frameworks import torch as over_weights
from trims_client.weights import Weights

from trims.image.program import TORCH_SKELETON, TRANSFORMERS

if TYPE_CHECKING:
    from pathlib import Path


def test_a_tensor_that_the_library_merges_is_one_of_the_image(tmp_path: Path) -> None:
    """Experts lie apart in files and together in modules."""
    folder = save(named("MixtralForCausalLM"), tmp_path / "m")
    published = set(load_file(folder / "model.safetensors"))
    with Weights.map_file(image_of(folder)) as weights:
        weights.trusted = True
        module = over_weights.module(weights)
        own = dict(module.state_dict())
        merged = {name for name in own if name not in published and "experts" in name}
        assert merged
        assert merged <= set(weights.layout.tensors)
        assert "model.layers.0.block_sparse_moe.gate.weight" in weights.layout.tensors  # renamed, and not copied
        assert not any("experts.0." in name for name in weights.layout.tensors)


def test_names_of_the_file_stay_where_the_module_has_others(tmp_path: Path) -> None:
    folder = save(named("BertForSequenceClassification"), tmp_path / "m")
    state = load_file(folder / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): each for name, each in state.items()}
    save_file(old, folder / "model.safetensors")
    with Weights.map_file(image_of(folder)) as weights:
        weights.trusted = True
        assert set(old) <= set(weights.layout.tensors)
        program = weights.program()
        assert program is not None
        assert program.kind == TORCH_SKELETON
        module = over_weights.module(weights)
        assert torch.equal(module.bert.embeddings.LayerNorm.weight, state["bert.embeddings.LayerNorm.weight"])


def test_tensors_without_a_place_in_the_module_stay_as_published(tmp_path: Path) -> None:
    folder = save(named("BertForMaskedLM"), tmp_path / "m")
    image = image_of(folder, task="feature-extraction")
    with Weights.map_file(image) as weights:
        assert "cls.predictions.bias" in weights.layout.tensors


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_module_that_cannot_be_pickled_is_made_by_each_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its weights are parametrized."""
    folder = save(named("Wav2Vec2ForCTC"), tmp_path / "m")
    with Weights.map_file(image_of(folder)) as weights:
        weights.trusted = True
        program = weights.program()
        assert program is not None
        assert program.kind == TRANSFORMERS
        module = over_weights.module(weights)
        shared = over_weights.state_dict(weights)
        assert module.lm_head.weight.data_ptr() == shared["lm_head.weight"].data_ptr()
    assert "cannot be pickled" in caplog.text


def test_tensors_at_odd_addresses_are_read_as_they_are(tmp_path: Path) -> None:
    folder = save(named("BertForSequenceClassification"), tmp_path / "m")
    weights_file = folder / "model.safetensors"
    content = weights_file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    weights_file.write_bytes(
        (length + 1).to_bytes(8, "little") + content[8 : 8 + length] + b" " + content[8 + length :]
    )
    state = load_file(weights_file)
    with Weights.map_file(image_of(folder)) as weights:
        found = over_weights.state_dict(weights)
        assert all(torch.equal(found[name], each) for name, each in state.items())
