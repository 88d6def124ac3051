"""A model that is new to this machine: from the library's first call to the first answer of the model."""

from __future__ import annotations

import importlib
import math
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from trims_bench.child import call
from trims_bench.figures import Bar, Comparison, Figure, Samples, faster
from trims_bench.zoo import drop_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims_bench.scenarios.base import Setup

TITLE = "first arrival of a model to its first answer, over transformers' from_pretrained, fresh processes"
_NEVER_LATER = Bar(">=", 1.0)
_SOONER = Bar(">=", 1.2)
_TOKENS = list(range(1000, 1016))
_TOLERANCE = 1e-4
#: Name that `save_pretrained` gives the file of the weights.
_FILE = "model.safetensors"
_NOTE = (
    "Both processes have imported torch and the model's class. Ours then imports trims, connects, opens the file, "
    "builds the module (`trims.torch.without_initialization`, `load_into`; ViT's file has other names than the "
    "module, which transformers' own rules translate) and runs it; theirs calls from_pretrained and runs it. "
    "Random weights. Before each turn the folder is renamed and the file touched, so that it is new to the daemon. "
    "Cold: the pages of the file were dropped from the page cache before."
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A model of transformers.

    Attributes:
        title: For people.
        name: Of the class, and of its configuration's.
        shape: What its configuration has beside the usual.
        small: The same for a quick run.
        renamed: Its file has other names than the module; transformers has rules for them.
    """

    title: str
    name: tuple[str, str]
    shape: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)
    renamed: bool = False


_SMALL_BERT = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 1100}
_LLAMA = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 18, "num_attention_heads": 16}
KINDS = (
    Kind(
        "MiniLM",
        ("BertModel", "BertConfig"),
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
        _SMALL_BERT,
    ),
    Kind("BERT-base", ("BertModel", "BertConfig"), {}, _SMALL_BERT),
    Kind("GPT-2", ("GPT2LMHeadModel", "GPT2Config"), {}, {"n_embd": 24, "n_layer": 1, "vocab_size": 1100}),
    Kind(
        "ViT-B",
        ("ViTModel", "ViTConfig"),
        {},
        {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1},
        renamed=True,
    ),
    Kind(
        "Llama, 300M",
        ("LlamaForCausalLM", "LlamaConfig"),
        _LLAMA,
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "vocab_size": 1100,
        },
    ),
)


def run(setup: Setup) -> Figure:
    """Measure each model in turns of ours and theirs, its file in the page cache and not."""
    figure = Figure("first_answer", TITLE, [], [_NOTE])
    with setup.scratch() as folder, setup.daemon(folder / "state") as daemon:
        for cold in (False, True):
            made = list(_all(setup, folder, daemon.runtime_dir, cold=cold))
            ratios = [math.log(comparison.value) for comparison in made]
            mean = math.exp(sum(ratios) / len(ratios))
            sides = [made[0].sides[0], made[0].sides[1]]
            figure.comparisons += made
            if not cold:
                figure.comparisons.append(Comparison("geometric mean", mean, "x", _SOONER, sides))
    return figure


def _all(setup: Setup, folder: Path, runtime_dir: Path, *, cold: bool) -> Iterator[Comparison]:
    for kind in KINDS[:1] if setup.quick else KINDS:
        given: dict[str, Any] = {"names": kind.name, "shape": kind.small if setup.quick else kind.shape}
        path = folder / uuid4().hex
        answer = call(make, {**given, "folder": str(path)})
        given["renamed"] = kind.renamed
        taken: dict[str, list[int]] = {"trims": [], "from_pretrained": []}
        for number in range(setup.uncounted + setup.repeats(7)):
            for side, measured in taken.items():
                path = path.rename(folder / uuid4().hex)
                os.utime(path / _FILE)
                if cold:
                    drop_pages(path)
                told = {**given, "folder": str(path), "side": side, "answer": answer, "runtime_dir": str(runtime_dir)}
                ns = call(measure, told)
                if number >= setup.uncounted:
                    measured.append(ns)
        ours, theirs = (Samples(side, measured) for side, measured in taken.items())
        yield faster(f"{kind.title}{', cold' if cold else ''}", ours, theirs, _NEVER_LATER)


def make(*, names: tuple[str, str], shape: dict[str, Any], folder: str) -> float:
    """Write a model with seeded random weights; returns what it answers."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    library = importlib.import_module("transformers")
    model, config = (getattr(library, name) for name in names)
    torch.manual_seed(1)
    module = model(config(**shape)).eval()
    module.save_pretrained(folder)
    return _run(module)


def measure(
    *,
    names: tuple[str, str],
    shape: dict[str, Any],
    renamed: bool,
    folder: str,
    side: str,
    answer: float,
    runtime_dir: str,
) -> int:
    """Nanoseconds from the first call to the answer."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    library = importlib.import_module("transformers")
    model, config = (getattr(library, name) for name in names)
    torch.set_num_threads(1)
    began = time.perf_counter_ns()
    if side == "trims":
        module = _over_trims(f"{folder}/{_FILE}", runtime_dir, model, config(**shape), renamed=renamed)
    else:
        module = model.from_pretrained(folder)
    found = _run(module)
    taken = time.perf_counter_ns() - began
    assert abs(found - answer) < _TOLERANCE, f"{folder}: {side} gave {found}, not {answer}"
    return taken


def _over_trims(path: str, runtime_dir: str, model: Any, config: Any, *, renamed: bool) -> Any:
    import trims

    with trims.connect(runtime_dir).open_file(path) as weights:
        with trims.torch.without_initialization():
            module = model(config)
        names = _translation(module) if renamed else None
        return trims.torch.load_into(module, weights, names=names).eval()


def _translation(module: Any) -> Callable[[str], str]:
    """Return a function from a tensor's name in a file for older versions to its name in transformers' module."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import rename_source_key

    rules = get_model_conversion_mapping(module)
    return lambda name: str(rename_source_key(name, rules, [])[0])


def _run(module: Any) -> float:
    import torch

    size = getattr(module.config, "image_size", None)
    with torch.inference_mode():
        given = torch.tensor([_TOKENS]) if size is None else torch.full((1, 3, size, size), 0.5)
        return float(module(given)[0].abs().mean())
