"""Steps as a manifest states them, ready to run; pictures and tokenizers to run them on."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from trims_predictors.api import Context
from trims_predictors.transforms.chain import BUILDERS, Chain

from trims.manifests.step_fields import parse_steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def operation(kind: str, folder: str = "", **fields: Any) -> Callable[..., tuple[Any, ...]]:
    """Return one built-in step, from the arrays it reads to those it writes."""
    (step,) = parse_steps([{kind: {"input": "x", **fields}}], "m: preprocess")
    return BUILDERS[kind](step.fields, folder)


def apply(kind: str, *arrays: Any, **fields: Any) -> Any:
    """The one array that a step makes of these."""
    (found,) = operation(kind, **fields)(*arrays)
    return found


def chain(*steps: Any, which: str = "preprocess", folder: str = "", **attributes: Any) -> Chain:
    """A list of steps of the model `m`."""
    return Chain(parse_steps(list(steps), f"m: {which}"), which, Context("m", attributes=attributes), folder)


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> Any:
    """An image of noise over a slope."""
    noise = np.random.default_rng(seed).integers(0, 100, (height, width, channels))
    return (noise + np.linspace(0, 150, width).astype(int)[None, :, None]).astype(np.uint8)


def encoded(pixels: Any, form: str = "PNG", **options: Any) -> bytes:
    """An image as a client sends it."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(out, form, **options)
    return out.getvalue()


def elements(*values: bytes) -> Any:
    """A BYTES tensor of shape [n]."""
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sleeps", "on", "a", "mat")


def write_tokenizer(folder: Path, *, padding: bool = False, words: tuple[str, ...] = WORDS) -> str:
    """A tokenizer of whole words, as `tokenizers` saves one; returns the name of its file."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {word: index for index, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if "[CLS]" in words:
        special = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
        made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    if padding:
        made.enable_padding(pad_id=vocabulary["mat"], pad_token="mat", direction="left", pad_type_id=7)
    made.save(str(folder / "tokenizer.json"))
    return "tokenizer.json"
