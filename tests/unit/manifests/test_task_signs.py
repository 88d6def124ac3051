"""Signs of a task in weights and tags; folders of models are in `formats/transformers/test_task.py`."""

from __future__ import annotations

import pytest

from trims.manifests import tasks
from trims.manifests.task_signs import _WRITING, task_of_tag, task_of_weights


@pytest.mark.parametrize(
    ("kind", "names", "sees", "task"),
    [
        ("bert", ["bert.encoder.layer.0.output.dense.weight"], False, "feature-extraction"),
        ("bert", [], False, None),
        ("t5", ["encoder.block.0.weight", "decoder.block.0.weight"], False, "text2text-generation"),
        ("t5", ["encoder.block.0.weight"], False, "feature-extraction"),
        ("llama", [], False, "text-generation"),
        ("a-new-one", ["model.layers.0.weight", "lm_head.weight"], False, "text-generation"),
        ("whisper", ["model.encoder.weight"], False, "automatic-speech-recognition"),
        ("wav2vec2", ["wav2vec2.encoder.weight"], False, None),
        ("vit", ["vit.encoder.weight", "classifier.weight"], True, "image-classification"),
        ("vit", ["vit.encoder.weight"], True, None),
    ],
)
def test_type_and_names_say_a_task_or_none(kind: str, names: list[str], sees: bool, task: str | None) -> None:
    assert task_of_weights({"model_type": kind}, names, sees=sees) == task


def test_tags_are_tasks_or_have_a_counterpart() -> None:
    assert [task_of_tag(each) for each in tasks.TASKS] == list(tasks.TASKS)
    assert task_of_tag("text-ranking") == "text-classification"
    assert task_of_tag("image-to-3d") is None


def test_the_types_of_models_are_the_librarys() -> None:
    known = pytest.importorskip("transformers.models.auto.modeling_auto")
    assert set(known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) >= _WRITING
    assert set(known.MODEL_FOR_CTC_MAPPING_NAMES) >= tasks.HEARING_FRAMES
    assert not _WRITING & (tasks.READING | tasks.HEARING | tasks.HEARING_FRAMES)
