"""Tasks of Hugging Face models, by their architectures."""

from __future__ import annotations

from typing import Any

import pytest

from trims.core.errors import CallerError
from trims.manifests.tasks import CTC, TASKS, auto_class, check_task, signature_of, task_of


@pytest.mark.parametrize(
    ("architecture", "model_type", "task"),
    [
        ("BertForSequenceClassification", "bert", "text-classification"),
        ("DebertaV2ForTokenClassification", "deberta-v2", "token-classification"),
        ("RobertaForMaskedLM", "roberta", "fill-mask"),
        ("FlaubertWithLMHeadModel", "flaubert", "fill-mask"),
        ("XLMForQuestionAnsweringSimple", "xlm", "question-answering"),
        ("GPT2LMHeadModel", "gpt2", "text-generation"),
        ("LlamaForCausalLM", "llama", "text-generation"),
        ("T5ForConditionalGeneration", "t5", "text2text-generation"),
        ("MarianMTModel", "marian", "text2text-generation"),
        ("WhisperForConditionalGeneration", "whisper", "automatic-speech-recognition"),
        ("Wav2Vec2ForCTC", "wav2vec2", "automatic-speech-recognition"),
        ("ViTForImageClassification", "vit", "image-classification"),
        ("BertModel", "bert", "feature-extraction"),
    ],
)
def test_an_architecture_says_its_task(architecture: str, model_type: str, task: str) -> None:
    assert task_of({"architectures": [architecture], "model_type": model_type}, "f", lambda: None) == task


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"},
        {"architectures": ["SomethingNew"]},
        {"architectures": []},
        {"architectures": None},
        {"architectures": [3]},
        {},
    ],
)
def test_an_architecture_that_says_nothing_is_refused_with_all_tasks(config: dict[str, Any]) -> None:
    with pytest.raises(CallerError) as refused:
        task_of(config, "/models/new", lambda: None)
    assert all(task in str(refused.value) for task in TASKS)
    assert "/models/new" in str(refused.value)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (["SomethingNew"], "f: its architecture 'SomethingNew' says no task; state one of "),
        ([], "f: its config.json names no architecture, and its weights say no task; state one of "),
    ],
)
def test_what_says_no_task_is_told_in_a_sentence(named: list[str], words: str) -> None:
    with pytest.raises(CallerError) as refused:
        task_of({"architectures": named}, "f", lambda: None)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize("named", [None, [], ["BertForPreTraining"]])
def test_without_an_architecture_that_says_the_task_other_signs_do(named: object) -> None:
    assert task_of({"architectures": named, "model_type": "bert"}, "f", lambda: "fill-mask") == "fill-mask"


def test_an_unknown_task_is_refused() -> None:
    assert check_task("fill-mask") == "fill-mask"
    for wrong in ("translation", "", None, ["fill-mask"]):
        with pytest.raises(CallerError):
            check_task(wrong)


def test_speech_models_of_frames_have_a_class_of_their_own() -> None:
    speech = "automatic-speech-recognition"
    assert auto_class(speech, {"architectures": ["HubertForCTC"]}) == CTC
    assert auto_class(speech, {"architectures": ["WhisperForConditionalGeneration"]}) == TASKS[speech].auto
    assert auto_class(speech, {}) == TASKS[speech].auto


@pytest.mark.parametrize("task", TASKS)
def test_the_signature_of_each_task_is_one_that_requests_can_have(task: str) -> None:
    assert signature_of(task).is_valid
    assert signature_of(task).inputs
    assert signature_of(task).outputs
