"""Tasks of folders whose `config.json` names no architecture, by their other signs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tiny_models import TINY, Tiny, image_of, named, save
from trims_client.frameworks import torch as over_weights
from trims_client.weights import Weights

from trims.control.artifacts import manifest_for
from trims.core.errors import CallerError
from trims.formats.transformers.folder import read_folder
from trims.formats.transformers.task import tag_of, task_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
#: Whose weights are made for another task than the test's: an NLI model is a classifier first.
CLASSIFIERS = {"zero-shot-classification": "text-classification"}
#: Types of models whose features and whose texts have the same weights: what they are trained for counts.
WRITERS = {"GPT2Model": "text-generation"}


def without_architectures(folder: Path, **fields: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    return folder


def task_of(folder: Path) -> str:
    """The task as `trims add` and as the converter find it, which are the same."""
    made = manifest_for(folder, "m")["artifact"]["options"]["task"]
    assert task_in(read_folder(folder / "config.json"), {}) == made
    return str(made)


@pytest.mark.parametrize("tiny", TINY, ids=str)
def test_the_weights_say_the_task_that_the_architecture_would(tmp_path: Path, tiny: Tiny) -> None:
    folder = without_architectures(save(tiny, tmp_path / "m"))
    assert task_of(folder) == WRITERS.get(tiny.kind, CLASSIFIERS.get(tiny.task, tiny.task))


@pytest.mark.parametrize(
    "kind",
    ["BertForSequenceClassification", "BertForTokenClassification", "RobertaForMaskedLM", "Wav2Vec2ForCTC",
     "GPT2LMHeadModel", "T5ForConditionalGeneration", "ViTForImageClassification", "BertForQuestionAnswering"],
)  # fmt: skip
def test_a_folder_without_architectures_becomes_a_module_of_its_class(tmp_path: Path, kind: str) -> None:
    folder = without_architectures(save(named(kind), tmp_path / "m"))
    with Weights.map_file(image_of(folder)) as weights:
        weights.trusted = True
        assert type(over_weights.module(weights)).__name__ == kind


@pytest.mark.parametrize(
    ("kind", "task"),
    [("BertForPreTraining", "fill-mask"), ("ElectraForPreTraining", "feature-extraction")],
)
def test_a_model_for_pretraining_has_the_task_of_its_weights(tmp_path: Path, kind: str, task: str) -> None:
    folder = save(Tiny(task, kind, named("BertModel").config), tmp_path / "m")
    assert task_of(folder) == task
    image_of(folder)


def test_labels_of_words_say_that_words_have_classes(tmp_path: Path) -> None:
    labels = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}, "label2id": {"O": 0, "B-PER": 1, "I-PER": 2}}
    tiny = Tiny("token-classification", "ModernBertForTokenClassification", {**named("BertModel").config, **labels})
    assert task_of(without_architectures(save(tiny, tmp_path / "m"))) == "token-classification"


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "pickled"])
def test_the_names_are_read_of_any_form_of_weights(tmp_path: Path, safe: bool) -> None:
    folder = save(named("BertForQuestionAnswering"), tmp_path / "m", safe=safe)
    assert task_of(without_architectures(folder)) == "question-answering"


@pytest.mark.parametrize(("kind", "task"), [("GPT2LMHeadModel", "text-generation"), ("BertForMaskedLM", None)])
def test_weights_that_only_torch_reads_leave_the_type_of_model(tmp_path: Path, kind: str, task: str | None) -> None:
    folder = save(named(kind), tmp_path / "m", safe=False)
    weights = folder / "pytorch_model.bin"
    torch.save(torch.load(weights), weights, _use_new_zipfile_serialization=False)
    without_architectures(folder)
    if task is None:
        with pytest.raises(CallerError, match="--task"):
            task_of(folder)
    else:
        assert task_of(folder) == task


@pytest.mark.parametrize(
    ("file", "content", "task"),
    [
        ("README.md", "---\nlicense: mit\npipeline_tag: token-classification\n---\n# M\n", "token-classification"),
        ("README.md", "---\npipeline_tag: sentence-similarity\n---\n", "sentence-embedding"),
        ("README.md", "---\npipeline_tag: image-to-3d\n---\n", "feature-extraction"),
        ("README.md", "pipeline_tag: token-classification\n", "feature-extraction"),
        ("README.md", "---\nlicense: mit\n---\npipeline_tag: token-classification\n", "feature-extraction"),
        ("sentence_bert_config.json", '{"max_seq_length": 32}', "sentence-embedding"),
        ("sentence_roberta_config.json", '{"max_seq_length": 32}', "sentence-embedding"),
        ("config_sentence_transformers.json", '{"model_type": "CrossEncoder"}', "text-classification"),
    ],
)  # fmt: skip
def test_what_others_wrote_into_a_folder_comes_before_its_weights(
    tmp_path: Path, file: str, content: str, task: str
) -> None:
    folder = without_architectures(save(named("BertModel"), tmp_path / "m"))
    (folder / file).write_text(content)
    assert manifest_for(folder, "m")["artifact"]["options"]["task"] == task


def test_a_folder_without_a_readme_has_no_tag(tmp_path: Path) -> None:
    assert not tag_of(tmp_path)


def test_a_model_that_sees_without_a_head_needs_a_stated_task(tmp_path: Path) -> None:
    folder = save(
        Tiny("features", "ViTModel", named("ViTForImageClassification").config, "ViTImageProcessor"), tmp_path
    )
    with pytest.raises(CallerError, match="its weights say no task; state one of"):
        task_of(without_architectures(folder))
