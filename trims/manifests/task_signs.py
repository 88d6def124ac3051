"""Signs of a Hugging Face model's task in a folder whose `config.json` names no architecture.

The library itself needs none: its classes for a task take any configuration of their types. A folder says the task all
the same: by the names of its weights, whose head is made for one task, and by its type of model. Standard library only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trims.manifests.tasks import (
    EMBEDDING,
    FEATURES,
    FILL_MASK,
    GENERATION,
    HEARING,
    IMAGES,
    QUESTION_ANSWERING,
    READING,
    SPEECH,
    TASKS,
    TEXT_CLASSIFICATION,
    TEXT_TO_TEXT,
    TOKEN_CLASSIFICATION,
    is_of_frames,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: Tags of the hub that have another name here.
_TAGS = {
    "sentence-similarity": EMBEDDING, "text-ranking": TEXT_CLASSIFICATION, "summarization": TEXT_TO_TEXT,
    "translation": TEXT_TO_TEXT, "conversational": GENERATION,
}  # fmt: skip
#: Types of models that go on with a text: all they are trained for, so their weights need no head to say it.
_WRITING = frozenset(
    (
        "arcee", "biogpt", "bitnet", "bloom", "codegen", "cohere", "cohere2", "cpmant", "ctrl", "dbrx", "deepseek_v2",
        "deepseek_v3", "ernie4_5", "exaone4", "falcon", "falcon_h1", "falcon_mamba", "gemma", "gemma2", "gemma3_text",
        "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_neox_japanese", "gpt_oss", "gptj", "granite",
        "granitemoe", "helium", "jamba", "jetmoe", "llama", "mamba", "mamba2", "ministral", "mistral", "mixtral", "mpt",
        "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "openai-gpt", "opt", "persimmon", "phi", "phi3", "phimoe",
        "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "recurrent_gemma", "rwkv", "seed_oss", "smollm3",
        "stablelm", "starcoder2", "xglm", "zamba", "zamba2",
    )
)  # fmt: skip
#: Heads by names of tensors, the first that is there counts; None for one of classes, which has several meanings.
_HEADS = (
    (r"qa_outputs\.", QUESTION_ANSWERING),
    (r"(cls\.|generator_|lm_)?predictions\.", FILL_MASK),
    (r"(lm_head\.(dense|layer_norm)|vocab_transform|generator_lm_head|pred_layer)\.|decoder\.bias\Z", FILL_MASK),
    (r"(classification_head|(pre_)?classifier|score|logits_proj|sequence_summary)\.", None),
    (r"(lm_head|lm_loss|embed_out|output_projection)\.", GENERATION),
)  # fmt: skip
#: Parts that a model has only for classes of whole texts: what it makes of the first word.
_OF_WHOLE_TEXTS = re.compile(
    r"((.+\.)?pooler\.|pre_classifier\.|classifier\.(dense|out_proj|summary)|classification_head\.|logits_proj\."
    r"|sequence_summary\.|score\.|head\.)"
)
_OF_WORDS = re.compile(r"[BILOSUE]-|O\Z")


def task_of_tag(tag: str) -> str | None:
    """Return the task that a tag of the hub (`pipeline_tag`) means; None for one that is not served."""
    return _TAGS.get(tag, tag if tag in TASKS else None)


def task_of_weights(config: Mapping[str, Any], names: Collection[str], *, sees: bool) -> str | None:
    """Return the task that type and weights of a model say; None if they say none.

    Args:
        config: `config.json`.
        names: Names of the tensors; none if they are not known.
    """
    kind = str(config.get("model_type", ""))
    if kind in HEARING or is_of_frames(config):
        return SPEECH if kind in HEARING or _has(names, r"lm_head\.") else None
    found, has_head = next(((task, True) for head, task in _HEADS if _has(names, head)), (None, False))
    if has_head and found is None:
        return IMAGES if sees else _of_classes(config, names)
    if found is not None and not (found == GENERATION and kind in READING):
        return found
    return _without_head(kind, names, sees=sees)


def _without_head(kind: str, names: Collection[str], *, sees: bool) -> str | None:
    """Return the task of weights that have no head, or one that is a table of words."""
    if kind in READING:
        return TEXT_TO_TEXT if not names or _has(names, r"(.+\.)?decoder\.") else FEATURES
    if kind in _WRITING:
        return GENERATION
    return FEATURES if names and not sees else None


def _has(names: Collection[str], head: str) -> bool:
    return any(re.match(head, name) for name in names)


def _of_classes(config: Mapping[str, Any], names: Collection[str]) -> str:
    """Return whether a model has classes of words, or of whole texts."""
    labels = config.get("id2label")
    if isinstance(labels, dict) and any(_OF_WORDS.match(str(each)) for each in labels.values()):
        return TOKEN_CLASSIFICATION
    return TEXT_CLASSIFICATION if any(map(_OF_WHOLE_TEXTS.match, names)) else TOKEN_CLASSIFICATION
