"""The predictor of Hugging Face models: its answers equal those of transformers' pipelines."""

from __future__ import annotations

import io
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import transformers
from tiny_models import TINY, Tiny, loaded, named, save
from trims_client.weights import Weights
from trims_predictors.api import Context
from trims_predictors.frameworks import PREDICTORS
from trims_predictors.frameworks.resolve import make
from trims_predictors.frameworks.transformers.predictor import TransformersPredictor, warm_up_template

from trims.core.errors import CallerError, NotSupportedError
from trims.manifests.tasks import TASKS, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TEXTS = ["hello world this is some text", "the cat sat on the mat", "not good"]
#: One model of each task in every run; all of them before a release.
FIRST = {each.task: each for each in reversed(TINY)}.values()
OF_PIPELINES = [each for each in TINY if each.task not in ("question-answering", "text2text-generation")]


def texts(*values: str) -> np.ndarray[Any, Any]:
    return np.array([each.encode() for each in values], dtype=object)


def picture() -> Any:
    from PIL import Image

    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8))


def encoded(image: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def asked(tiny: Tiny, folder: Path) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Inputs of a request, and the same question to a pipeline."""
    sound = np.random.default_rng(0).standard_normal((1, 8000)).astype(np.float32)
    image, words = picture(), TEXTS
    if tiny.task == "fill-mask":
        mask = transformers.AutoTokenizer.from_pretrained(folder).mask_token
        words = [f"{each} {mask}" for each in TEXTS]
    labels = ["cat", "city"]
    special: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
        "image-classification": ({"image": texts_of(encoded(image))}, lambda ask: ask([image])),
        "automatic-speech-recognition": ({"samples": sound}, lambda ask: [ask(sound[0])]),
        "zero-shot-classification": (
            {"text": texts(*words), "candidate_labels": texts(*labels)},
            lambda ask: ask(words, candidate_labels=labels),
        ),
        "text-generation": (
            {"text": texts(*words), "max_new_tokens": np.array([8])},
            lambda ask: [each[0] for each in ask(words, max_new_tokens=8, do_sample=False)],
        ),
    }
    return special.get(tiny.task, ({"text": texts(*words)}, lambda ask: ask(words)))


def texts_of(*values: bytes) -> np.ndarray[Any, Any]:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def flat(value: Any) -> Iterator[Any]:
    """All numbers and texts of an answer, in an order of its own."""
    if isinstance(value, dict):
        for name in sorted(value):
            yield from flat(value[name])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from flat(each)
    elif hasattr(value, "tolist"):
        yield from flat(value.tolist())
    else:
        yield value


def alike(first: Any, second: Any) -> bool:
    return math.isclose(first, second, abs_tol=1e-5) if isinstance(second, float) else bool(first == second)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "tiny",
    [pytest.param(each, marks=[] if each in FIRST else [pytest.mark.soak]) for each in OF_PIPELINES],
    ids=str,
)
def test_answers_equal_those_of_the_pipeline(tiny: Tiny, tmp_path: Path) -> None:
    folder = save(tiny, tmp_path / "model")
    inputs, ask = asked(tiny, folder)
    with loaded(folder, task=tiny.task) as predictor:
        rows = [json.loads(each) for each in predictor.predict_only(inputs, ["output"])["output"]]
        outputs = predictor.predict(inputs)
    expected = list(flat(ask(transformers.pipeline(tiny.task, model=str(folder), device="cpu"))))
    found = list(flat(rows))
    assert len(found) == len(expected)
    assert all(alike(*pair) for pair in zip(found, expected, strict=True))
    assert list(outputs) == [each.name for each in signature_of(tiny.task).outputs]
    for stated in signature_of(tiny.task).outputs:
        assert len(outputs[stated.name]) == len(rows)
        assert (outputs[stated.name].dtype.kind == "O") == (stated.dtype == "BYTES")


@pytest.mark.parametrize("name", ["text", "args", "array_inputs", "inputs", "text_inputs", "anything"])
@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_an_input_that_is_alone_is_the_text_whatever_its_name(load: Any, name: str, shape: tuple[int, ...]) -> None:
    with load("BertForSequenceClassification") as predictor:
        expected = predictor.predict({"text": texts(*TEXTS[:2])})
        found = predictor.predict({name: texts(*TEXTS[:2]).reshape(shape)})
        assert {key: value.tolist() for key, value in found.items()} == {
            key: value.tolist() for key, value in expected.items()
        }


def test_the_forms_of_other_servers_are_given_to_those_who_ask_by_their_names(load: Any) -> None:
    with load("BertForSequenceClassification") as predictor:
        found = predictor.predict_only({"args": texts(*TEXTS)}, ["output", "output-0", "label"])
        assert {"output", "output-0", "label"} <= found.keys()
        rows = [json.loads(each) for each in found["output"]]
        assert [each["label"].encode() for each in rows] == found["label"].tolist()
        assert found["output-0"].dtype == np.int64
        assert found["output-0"].shape == (3,)


# fault (folders): an empty batch; a tokenizer of 50 MB -> an empty answer; nothing
@pytest.mark.parametrize("task", ["text-classification", "token-classification", "fill-mask", "feature-extraction"])
def test_a_batch_of_nothing_is_answered_by_nothing(load: Any, task: str) -> None:
    kinds = {
        "text-classification": "BertForSequenceClassification", "token-classification": "BertForTokenClassification",
        "fill-mask": "BertForMaskedLM", "feature-extraction": "BertModel",
    }  # fmt: skip
    with load(kinds[task]) as predictor:
        found = predictor.predict({"text": np.empty(0, dtype=object)})
        assert [len(each) for each in found.values()] == [0] * len(found)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "nothing"),
        ({"a": texts("x"), "b": texts("y")}, "a, b"),
        ({"text": np.zeros(1, np.float32)}, "BYTES"),
        ({"text": texts("a", "b", "c", "d").reshape(2, 2)}, "one text for each row"),
        ({"text": texts_of(b"\xff\xfe")}, "UTF-8"),
        ({"text": texts("x"), "more": texts("y")}, "'more'"),
    ],
)
def test_a_request_that_cannot_be_read_is_refused(load: Any, inputs: dict[str, Any], words: str) -> None:
    with load("BertForSequenceClassification") as predictor:
        with pytest.raises(CallerError, match=words):
            predictor.predict(inputs)
        assert len(predictor.predict({"text": texts("x")})["label"]) == 1  # and the next one is answered


def test_an_option_that_the_task_has_not_is_refused(load: Any) -> None:
    for options in ({"max_new_tokens": 3}, {"truncation": "yes"}, {"max_length": 0}, {"top_k": True}):
        with (
            pytest.raises(NotSupportedError, match=next(iter(options))),
            load("BertForSequenceClassification", options),
        ):
            pass


def test_an_image_without_files_of_a_model_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    from trims.formats.base import Artifact
    from trims.formats.safetensors.converter import SafetensorsConverter

    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "m.safetensors")
    plan = SafetensorsConverter().plan(Artifact("safetensors", (tmp_path / "m.safetensors",)))
    with (tmp_path / "image").open("w+b") as file:
        file.truncate(plan.nbytes)
        plan.write(file.fileno())
    with Weights.map_file(tmp_path / "image") as weights, pytest.raises(NotSupportedError, match="trims add FOLDER"):
        TransformersPredictor().load(weights, Context("m"))


# fault (folders): no tokenizer that the task needs -> a note at `trims add`; `not_supported` with the files at each
# request
def test_a_folder_without_a_tokenizer_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    folder = save(named("BertForSequenceClassification"), tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(NotSupportedError, match=r"tokenizer\.json"), loaded(folder):
        pass


# fault (folders): an empty batch; a tokenizer of 50 MB
def test_a_tokenizer_of_50_mb_is_read_as_a_small_one(tmp_path: Path) -> None:
    folder = save(named("BertForSequenceClassification"), tmp_path / "m")
    with loaded(folder) as predictor:
        expected = predictor.predict({"text": texts("a text")})
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"].update({f"word-{number:034}": 1 for number in range(50_000_000 // 44)})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert (folder / "tokenizer.json").stat().st_size > 50_000_000
    with loaded(folder) as predictor:
        assert predictor.predict({"text": texts("a text")})["score"] == expected["score"]


def test_the_predictor_is_that_of_the_framework(load: Any) -> None:
    assert type(make(PREDICTORS["transformers"], "class", "")) is TransformersPredictor
    assert set(TASKS) >= {each.task for each in TINY}
    warm_up_template()
    with load("BertForSequenceClassification") as predictor:
        assert set(predictor.rehearse({"text": texts("x")})) == {"label", "score"}


@pytest.mark.parametrize("streams", [True, False])
def test_a_request_to_generate_is_refused_by_a_model_of_another_task(load: Any, streams: bool) -> None:
    asked = {"text_input": texts("hello"), "return_full_text": np.array([False])}
    with load("BertForSequenceClassification") as predictor:
        with pytest.raises(CallerError, match="its task is text-classification, which generates no text"):
            predictor.predict_stream(asked, [], lambda _: True, streams=streams)
        with pytest.raises(CallerError, match="generates no text"):
            predictor.predict({"image": texts("hello"), **asked})
