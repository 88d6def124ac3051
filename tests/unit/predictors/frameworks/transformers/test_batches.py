"""Requests that run together: each gets what it gets alone, and a task whose requests would mix takes no batches."""

from __future__ import annotations

import io
import itertools
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import transformers
from tiny_models import TINY, image_of, loaded, save
from trims_client.weights import Weights
from trims_predictors.api import Context
from trims_predictors.frameworks.transformers.predictor import TransformersPredictor
from trims_predictors.pool.batching import join, rows_of, split
from trims_predictors.tensors import from_array, to_array

from trims.core.errors import CallerError, NotSupportedError
from trims.manifests.tasks import TASKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trims_predictors.tensors import Tensor

FIRST = {each.task: each for each in reversed(TINY)}
BY_ROW = [task for task, each in TASKS.items() if each.by_row]
MIXING = [task for task in TASKS if task not in BY_ROW]
#: Words of requests of one to three rows, short and long.
WORDS = (["the cat sat on the mat"], ["not good", "hello world this is some text and more text"], ["a", "b c", "d"])
#: Numbers of a JSON answer that a batch of another size may round otherwise.
_FLOAT = re.compile(rb"-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)")


def elements(*values: str | bytes) -> np.ndarray[Any, Any]:
    made = np.empty(len(values), dtype=object)
    made[:] = [each.encode() if isinstance(each, str) else each for each in values]
    return made


def picture() -> bytes:
    from PIL import Image

    content = io.BytesIO()
    points = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(points).save(content, "PNG")
    return content.getvalue()


def inputs_of(task: str, folder: Path) -> Iterator[dict[str, Any]]:
    if task == "image-classification":
        image = picture()
        yield from ({"image": elements(*[image] * rows)} for rows in (1, 2))
        yield {"inputs": elements(image)}
        return
    mask = f" {transformers.AutoTokenizer.from_pretrained(folder).mask_token}" if task == "fill-mask" else ""
    for words in WORDS:
        yield {"text": elements(*(each + mask for each in words))}
    yield {"inputs": elements(WORDS[0][0] + mask)}
    if task == "text-classification":
        yield {"text": elements("one"), "text_pair": elements("two")}
    yield {"text": elements("a" + mask), "unknown": elements("b")}


def wanted_of(task: str) -> list[tuple[str, ...]]:
    own = tuple(each.name for each in TASKS[task].outputs)
    return [(), own[:1], own, ("output",), ("output-0",), ("unknown",)]


def answered(predictor: Any, tensors: Sequence[Tensor], wanted: Sequence[str]) -> list[Tensor] | str:
    """Return what a request is answered with, or the class of its error; outputs as the worker chooses them."""
    arrays = {tensor.name: to_array(tensor) for tensor in tensors}
    try:
        found = predictor.predict_only(arrays, list(wanted)) if wanted else predictor.predict(arrays)
    except CallerError as error:
        return type(error).__name__
    return [from_array(name, array) for name, array in found.items()]


def floats(texts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.array([float(number) for text in texts.flat for number in _FLOAT.findall(text)])


def check_same(one: list[Tensor] | str, other: list[Tensor] | str) -> None:
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    assert [each.name for each in one] == [each.name for each in other]
    for first, second in zip(map(to_array, one), map(to_array, other), strict=True):
        assert first.shape == second.shape
        if first.dtype == object:
            texts = [[_FLOAT.sub(b"0.0", text) for text in each.flat] for each in (first, second)]
            assert texts[0] == texts[1]
            first, second = map(floats, (first, second))
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("task", BY_ROW)
def test_a_request_is_answered_beside_any_other_as_it_is_alone(task: str, tmp_path: Path) -> None:
    folder = save(FIRST.get(task, FIRST["feature-extraction"]), tmp_path / "model")
    brought = [[from_array(name, array) for name, array in inputs.items()] for inputs in inputs_of(task, folder)]
    requests = list(itertools.product(brought, wanted_of(task)))
    together = 0
    with loaded(folder, task=task) as predictor:
        alone = [answered(predictor, *each) for each in requests]
        for first, second in itertools.combinations_with_replacement(range(len(requests)), 2):
            both = [requests[first], requests[second]]
            groups = [rows_of(*each) for each in both]
            if groups[0][1] != groups[1][1]:
                continue
            together += 1
            found = answered(predictor, join([tensors for tensors, _ in both]), both[0][1])
            parts = [found] * 2 if isinstance(found, str) else split(found, [rows for rows, _ in groups])
            for part, number in zip(parts, (first, second), strict=True):
                check_same(part, alone[number])
    assert together > len(requests)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("task", MIXING)
def test_a_model_of_a_task_whose_requests_would_mix_is_loaded_for_no_batches(task: str, tmp_path: Path) -> None:
    folder = save(FIRST.get(task, FIRST["feature-extraction"]), tmp_path / "model")
    with Weights.map_file(image_of(folder, task=task)) as weights:
        weights.trusted = True
        with pytest.raises(NotSupportedError, match="max_batch_size"):
            TransformersPredictor().load(weights, Context("m", max_batch_size=2))
