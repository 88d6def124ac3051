"""Tasks of Hugging Face models: their names, and the task of an architecture. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import CallerError, NotSupportedError
from trims.manifests.serving import ANY, Signature, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, FILL_MASK = "text-classification", "token-classification", "fill-mask"
QUESTION_ANSWERING, ZERO_SHOT = "question-answering", "zero-shot-classification"
FEATURES, EMBEDDING = "feature-extraction", "sentence-embedding"
GENERATION, TEXT_TO_TEXT = "text-generation", "text2text-generation"
IMAGES, SPEECH = "image-classification", "automatic-speech-recognition"


class Task(NamedTuple):
    """A task.

    Attributes:
        auto: Class of transformers that makes the module for a configuration.
        inputs: What requests bring, by the names that answers to them are documented with.
        reads: What prepares inputs: `tokenizer`, `image_processor` or `feature_extractor`.
        by_row: Each row of the answer follows from one row of the inputs, so that requests may run together. In the
            other tasks an input is for the whole request, or the longest row makes the answer's shape.
    """

    auto: str
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    reads: tuple[str, ...] = ("tokenizer",)
    by_row: bool = False


def _text(name: str) -> TensorType:
    return TensorType(name, "BYTES", (ANY,))


_LABELS = (_text("label"), TensorType("score", "FP32", (ANY,)))
_GENERATED = (_text("generated_text"),)
TASKS: Mapping[str, Task] = {
    TEXT_CLASSIFICATION: Task("AutoModelForSequenceClassification", (_text("text"),), _LABELS, by_row=True),
    TOKEN_CLASSIFICATION: Task(
        "AutoModelForTokenClassification",
        (_text("text"),),
        (
            TensorType("entity", "BYTES", (ANY, ANY)),
            TensorType("score", "FP32", (ANY, ANY)),
            TensorType("word", "BYTES", (ANY, ANY)),
            TensorType("start", "INT64", (ANY, ANY)),
            TensorType("end", "INT64", (ANY, ANY)),
        ),
    ),
    FILL_MASK: Task(
        "AutoModelForMaskedLM",
        (_text("text"),),
        (
            TensorType("token_str", "BYTES", (ANY, ANY)),
            TensorType("score", "FP32", (ANY, ANY)),
            TensorType("token", "INT64", (ANY, ANY)),
            TensorType("sequence", "BYTES", (ANY, ANY)),
        ),
        by_row=True,
    ),
    QUESTION_ANSWERING: Task(
        "AutoModelForQuestionAnswering",
        (_text("question"), _text("context")),
        (
            _text("answer"),
            TensorType("score", "FP32", (ANY,)),
            TensorType("start", "INT64", (ANY,)),
            TensorType("end", "INT64", (ANY,)),
        ),
    ),
    ZERO_SHOT: Task(
        "AutoModelForSequenceClassification",
        (_text("text"), _text("candidate_labels")),
        (TensorType("labels", "BYTES", (ANY, ANY)), TensorType("scores", "FP32", (ANY, ANY))),
    ),
    FEATURES: Task("AutoModel", (_text("text"),), (TensorType("features", "FP32", (ANY, ANY, ANY)),)),
    EMBEDDING: Task("AutoModel", (_text("text"),), (TensorType("embedding", "FP32", (ANY, ANY)),), by_row=True),
    GENERATION: Task("AutoModelForCausalLM", (_text("text"),), _GENERATED),
    TEXT_TO_TEXT: Task("AutoModelForSeq2SeqLM", (_text("text"),), _GENERATED),
    IMAGES: Task(
        "AutoModelForImageClassification",
        (TensorType("image", "BYTES", (ANY,)),),
        (TensorType("label", "BYTES", (ANY, ANY)), TensorType("score", "FP32", (ANY, ANY))),
        ("image_processor",),
        by_row=True,
    ),
    SPEECH: Task(
        "AutoModelForSpeechSeq2Seq",
        (TensorType("samples", "FP32", (ANY, ANY)),),
        (_text("text"),),
        ("tokenizer", "feature_extractor"),
    ),
}
#: Class of speech models whose output is one symbol for each frame.
CTC = "AutoModelForCTC"
#: End of an architecture's name -> task; the first that fits counts.
_BY_ENDING = (
    ("ForSequenceClassification", TEXT_CLASSIFICATION),
    ("ForTokenClassification", TOKEN_CLASSIFICATION),
    ("ForMaskedLM", FILL_MASK),
    ("ForQuestionAnswering", QUESTION_ANSWERING),
    ("ForQuestionAnsweringSimple", QUESTION_ANSWERING),
    ("ForCausalLM", GENERATION),
    ("WithLMHeadModel", FILL_MASK),
    ("LMHeadModel", GENERATION),
    ("ForImageClassification", IMAGES),
    ("ForImageClassificationWithTeacher", IMAGES),
    ("ForCTC", SPEECH),
    ("ForSpeechSeq2Seq", SPEECH),
    ("MTModel", TEXT_TO_TEXT),
)
#: Types of models whose ForConditionalGeneration hears.
HEARING = frozenset({"whisper", "speech_to_text", "moonshine", "speecht5", "seamless_m4t", "seamless_m4t_v2"})
#: Types of models that hear, and say a symbol for each frame.
HEARING_FRAMES = frozenset(
    (
        "data2vec-audio", "hubert", "parakeet_ctc", "sew", "sew-d", "unispeech", "unispeech-sat", "wav2vec2",
        "wav2vec2-bert", "wav2vec2-conformer", "wavlm",
    )
)  # fmt: skip
#: Types of models whose ForConditionalGeneration reads text and nothing else.
READING = frozenset(
    (
        "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "encoder-decoder", "fsmt", "led", "longt5",
        "m2m_100", "marian", "mbart", "mt5", "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart", "prophetnet",
        "switch_transformers", "t5", "t5gemma", "umt5",
    )
)  # fmt: skip


def check_task(task: object) -> str:
    """Return a task's name. Raises CallerError naming all there are."""
    if not isinstance(task, str) or task not in TASKS:
        raise CallerError(f"there is no task {task!r:.80}; known are {', '.join(TASKS)}")
    return task


def task_of(config: Mapping[str, Any], where: str, otherwise: Callable[[], str | None]) -> str:
    """Return the task of a model.

    Args:
        config: Content of `config.json`.
        where: The folder, for errors.
        otherwise: Returns the task by other signs, if no architecture is named.

    Raises CallerError, with the list of tasks, if nothing says it.
    """
    named = config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    is_head = architecture and not architecture.endswith("ForPreTraining")
    found = _of_architecture(architecture, str(config.get("model_type", ""))) if is_head else otherwise()
    if found is None:
        said = (
            f"its architecture {architecture!r:.100} says no task"
            if architecture
            else "its config.json names no architecture, and its weights say no task"
        )
        raise CallerError(f"{where}: {said}; state one of {', '.join(TASKS)} (--task, in a manifest options.task)")
    return found


def _of_architecture(architecture: str, model_type: str) -> str | None:
    for ending, task in _BY_ENDING:
        if architecture.endswith(ending):
            return task
    if architecture.endswith("ForConditionalGeneration"):
        if model_type in HEARING:
            return SPEECH
        return TEXT_TO_TEXT if model_type in READING else None
    if architecture.endswith("Model") and "For" not in architecture:
        return FEATURES
    return None


def auto_class(task: str, config: Mapping[str, Any], *, masks_words: bool = False) -> str:
    """Return the class of transformers that makes the module of a task for a configuration.

    Args:
        config: `config.json`.
        masks_words: Embeddings are made of the scores of masked words, as SPLADE's are.
    """
    if masks_words and task == EMBEDDING:
        return TASKS[FILL_MASK].auto
    named = config.get("architectures")
    hears_frames = any(str(each).endswith("ForCTC") for each in named) if named else is_of_frames(config)
    return CTC if task == SPEECH and hears_frames else TASKS[task].auto


def is_of_frames(config: Mapping[str, Any]) -> bool:
    """Return whether a model hears, and says a symbol for each frame, by its type."""
    return config.get("model_type") in HEARING_FRAMES


def check_batches(task: str, max_batch_size: int, model: str) -> None:
    """Raise NotSupportedError for a task whose requests would mix if they ran together, as a manifest has it."""
    if max_batch_size and task in TASKS and not TASKS[task].by_row:
        together = ", ".join(name for name, each in TASKS.items() if each.by_row)
        raise NotSupportedError(
            f"{model}: requests of the task {task} cannot run together: each has inputs, or an answer, that belong to "
            f"it as a whole; leave out `max_batch_size`, which {together} may have, or state more `instances`"
        )


def signature_of(task: str) -> Signature:
    """Return the inputs and outputs of a task."""
    return Signature(TASKS[task].inputs, TASKS[task].outputs)
