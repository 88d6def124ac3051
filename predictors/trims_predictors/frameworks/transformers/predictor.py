"""The predictor of Hugging Face models: module and tokenizer from the image, answers as transformers' pipelines give.

The image carries the files of the model's folder, so nothing is read from it. What a request brings and gets depends on
the task (`trims.manifests.tasks`). Clients of two other servers find what they know: any input that is alone is the
text, `output` is one JSON value for each row (as MLServer's runtime answers), and `output-0` is KServe's tensor.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from trims_client.frameworks import torch as over_weights

from trims.core.errors import CallerError, NotSupportedError
from trims.image.model_files import described_in
from trims.image.program import TRANSFORMERS_CODE
from trims.image.transformers_models import folder_of, library
from trims.manifests.tasks import TASKS, check_batches
from trims_predictors.frameworks import torch as framework
from trims_predictors.frameworks.transformers.answers import Answer, Parts, Streaming
from trims_predictors.frameworks.transformers.requests import FULL_TEXT, Inputs, strings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trims_client.weights import Weights

    from trims_predictors.api import Arrays, Context
    from trims_predictors.frameworks.transformers.answers import Answering, Emit

#: Names under which answers have the forms of MLServer's and KServe's runtimes.
MLSERVER, KSERVE = "output", "output-0"


class TransformersPredictor:
    """A model of a Hugging Face folder."""

    #: Whether `rehearse` takes a text of a few words for an input that is text.
    rehearses_text = True
    _answering: Answering
    _task: str

    def load(self, weights: Weights, context: Context) -> None:
        """Make module, tokenizer and processors. Raises what `trims.torch.module` raises, NotSupportedError."""
        program = weights.program()
        described = described_in(program)
        if described is None or program is None:
            raise NotSupportedError(
                f"the image of {weights.name!r} has no files of a Hugging Face model; register its folder "
                "(trims add FOLDER), or `format: transformers` in the manifest"
            )
        check_batches(described.task, context.max_batch_size, context.model)
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # what is not in the image is not fetched at a request
        library()
        with_code = program.kind == TRANSFORMERS_CODE
        module = over_weights.module(weights)
        with folder_of(described.files) as folder:
            parts = Parts(module, described, folder, context.options, with_code)
            self._answering = _answering_of(described.task)(parts)
        self._task = described.task

    def predict(self, inputs: Arrays) -> Arrays:
        """Answer one request with the task's outputs. Raises CallerError for what the task cannot read."""
        return self._answer(inputs).outputs()

    def predict_only(self, inputs: Arrays, wanted: Sequence[str]) -> Arrays:
        """Answer one request with these outputs, of which `output` and `output-0` are forms of other servers."""
        return self._formed(self._answer(inputs), wanted)

    def predict_stream(self, inputs: Arrays, wanted: Sequence[str], emit: Emit, *, streams: bool) -> Arrays:
        """Answer one request, whose run ends early if `emit` says that its client has gone."""
        if not isinstance(self._answering, Streaming):
            answer = self._answer(inputs)
        else:
            with torch.inference_mode():
                answer = self._answering(Inputs(inputs), emit, streams=streams)
        return self._formed(answer, wanted) if wanted else answer.outputs()

    @staticmethod
    def _formed(answer: Answer, wanted: Sequence[str]) -> Arrays:
        forms: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
            MLSERVER: lambda: strings([json.dumps(each, default=_plain) for each in answer.rows()]),
            KSERVE: answer.kserve,
        }
        own = {**answer.outputs(), **answer.extras()} if any(name not in forms for name in wanted) else {}
        return {**own, **{name: form() for name, form in forms.items() if name in wanted}}

    def _answer(self, inputs: Arrays) -> Answer:
        if FULL_TEXT in inputs and not isinstance(self._answering, Streaming):
            # The endpoints of generation add it, so its client would not know the name.
            raise CallerError(f"its task is {self._task}, which generates no text")
        given = Inputs(inputs)
        with torch.inference_mode():
            return self._answering(given)

    def rehearse(self, inputs: Arrays) -> Arrays | None:
        """Compile kernels and take the memory of a run, which ends at the first part of an answer."""
        try:
            return self.predict_stream(inputs, (), lambda _: False, streams=False)
        except CallerError:  # zeros are no picture, and a neutral text is no JSON
            return None

    def unload(self) -> None:
        """Let go of the module: its tensors hold the lease."""
        del self._answering


def _answering_of(task: str) -> Callable[[Parts], Answering]:
    """Return what answers a task, from a module of its own: none but that is imported."""
    from importlib import import_module

    found: Callable[[Parts], Answering] = getattr(import_module(f"{__package__}.{_ROOMS[task][0]}"), _ROOMS[task][1])
    return found


_ROOMS = {
    "text-classification": ("classification", "TextClassification"),
    "token-classification": ("classification", "TokenClassification"),
    "zero-shot-classification": ("classification", "ZeroShotClassification"),
    "fill-mask": ("classification", "FillMask"),
    "question-answering": ("question_answering", "QuestionAnswering"),
    "feature-extraction": ("embedding", "Features"),
    "sentence-embedding": ("embedding", "SentenceEmbedding"),
    "text-generation": ("generation", "Generation"),
    "text2text-generation": ("generation", "Generation"),
    "image-classification": ("media", "ImageClassification"),
    "automatic-speech-recognition": ("media", "SpeechRecognition"),
}
assert _ROOMS.keys() == TASKS.keys()


def _plain(value: Any) -> Any:
    """Return a number or array of numpy's as JSON has it."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


def warm_up_template() -> None:
    """Import what models of any architecture need, and run torch once with one thread."""
    _import_library()
    framework.warm_up_template()


def warm_up(threads: int) -> None:
    """Start the threads of this predictor."""
    framework.warm_up(threads)


def _import_library() -> None:
    """Import the parts of transformers that it would import at a first use."""
    from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast, pipelines

    del AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast, pipelines
