"""Starts of models: one table of model x tier x way, each row an evaluation of `trims.evaluate`.

An evaluation brings the store into the state that a start begins from, verifies it, and takes samples in turns: the
framework alone, a fresh process, a fork of a template, and a predictor that runs already.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from trims_bench.measuring import Bar, Comparison, Figure, Samples, faster, more, ratio
from trims_bench.models import ARCHITECTURES, MXNET, NUMPY, ONNX, SHIPPED, SIDE, TORCH, artifact_of, inputs, manifest
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from trims_bench.evaluation.records import Evaluated, Sample
    from trims_bench.scenarios.base import Setup

TIERS, WAYS = ("file", "disk", "cpu"), ("alone", "fresh", "template", "hot")
_QUICK_TIERS, _QUICK_WAYS = ("cpu",), ("alone", "fresh")
#: Stages that are the model's: not the interpreter's, the libraries' or the computation's.
_OTHERS = ("process", "import framework", "import code", "run", "unattributed")
#: Tier of the framework alone that a start is compared with: its file, in memory or not.
_ALONE_FOR = {"file": "file", "disk": "file", "cpu": "cpu"}
#: Below this compute, a share of it says more about the fixed part of a start than about the way to the answer.
_LEAST_COMPUTE_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of a framework's starts.

    Attributes:
        sooner: Times that a fork from shared memory is sooner than the framework alone.
        more: Milliseconds that it takes beside computing.
        ready: Times that its model is ready sooner; None where nothing is asked.
        steady: Times that a later run may take of the framework's own.
    """

    sooner: Bar | None = None
    more: Bar | None = None
    ready: Bar | None = None
    steady: Bar | None = None


_STEADY = Bar("<=", 1.03)
_TORCH = Bars(Bar(">=", 20.0), Bar("<=", 30.0))


@dataclass(frozen=True, slots=True)
class Start:
    """Model that is started.

    Attributes:
        architecture: One of `ARCHITECTURES`; empty for the small function of numpy.
        repeats: Samples of each row.
        published: Name of a manifest in the manifests folder, whose weights take the place of seeded ones.
    """

    title: str
    architecture: str
    framework: str
    bars: Bars = _TORCH
    repeats: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)
    artifact_format: str = ""
    published: str = ""


STARTS = {
    "numpy": Start("two dense layers, numpy", "", NUMPY, Bars()),
    "minilm": Start("all-MiniLM-L6-v2, PyTorch", "minilm", TORCH, published="minilm-l6-v2"),
    "bert-base": Start(
        "BERT-base, PyTorch", "bert-base", TORCH, Bars(Bar(">=", 20.0), Bar("<=", 30.0), Bar(">=", 100.0))
    ),
    "gpt2": Start("GPT-2, PyTorch", "gpt2", TORCH),
    "vit-b": Start("ViT-B, PyTorch", "vit-b", TORCH, artifact_format="torch"),
    "llama-300m": Start("Llama of 300M, PyTorch", "llama-300m", TORCH, repeats=5),
    "resnet50-torch": Start(
        "ResNet-50, PyTorch", "resnet50", TORCH, Bars(Bar(">=", 20.0), Bar("<=", 30.0), Bar(">=", 50.0)),
        artifact_format="torch",
    ),
    "resnet50-onnx": Start(
        "ResNet-50, ONNX Runtime", "resnet50", ONNX, Bars(Bar(">=", 20.0), Bar("<=", 30.0), Bar(">=", 20.0), _STEADY),
        published="resnet50",
    ),
    "bert-base-onnx": Start(
        "BERT-base, ONNX Runtime, packed weights shared", "bert-base", ONNX,
        Bars(Bar(">=", 20.0), Bar("<=", 30.0), None, _STEADY), options={"prepack": "shared"},
    ),
    "resnet50-mxnet": Start(
        "ResNet-50, MXNet", "resnet50-mxnet", MXNET, Bars(Bar(">=", 8.0), Bar("<=", 120.0)), repeats=7
    ),
    "vgg16-mxnet": Start(
        "VGG-16, MXNet", "vgg16-mxnet", MXNET, Bars(Bar(">=", 8.0), Bar("<=", 120.0), Bar(">=", 50.0)), repeats=7,
        published="vgg16",
    ),
}  # fmt: skip
_NOTE = (
    "From nothing to the first answer, by `trims.evaluate`. From file: no image is anywhere, and the file's bytes are "
    "not in memory; disk: the image is, and not in memory; cpu: in shared memory. Of the framework alone: the file is "
    "in memory or not. Ready: what the model takes, without the "
    "interpreter, the framework's import and computing; a fresh process imports the model's code in it."
)


def evaluate_start(start: Start, name: str, setup: Setup) -> Figure:
    """Evaluate a model from all tiers in all ways. Raises MxnetMissingError where its framework is not."""
    import trims

    if start.framework == MXNET:
        _ = setup.mxnet
    with setup.scratch() as folder, setup.daemon() as daemon:
        model = daemon.register(_manifest(start, name, setup, folder))
        evaluated = trims.evaluate(
            model,
            _inputs(start, setup),
            tiers=_QUICK_TIERS if setup.quick else TIERS,
            ways=_QUICK_WAYS if setup.quick and start.framework != NUMPY else WAYS,
            repeats=setup.repeats(start.repeats),
            database=setup.database,
            runtime_dir=str(daemon.runtime_dir),
            environments=setup.environments(),
        )
        daemon.evict(model)
    return figure_of(start, name, evaluated)


def _manifest(start: Start, name: str, setup: Setup, folder: Path) -> dict[str, Any]:
    from trims_bench.small import manifest as small_manifest
    from trims_bench.small import write_weights

    if start.framework == NUMPY:
        return small_manifest("dense", write_weights(folder / "small.npz"), "dense", [-1, 64])
    if start.published and not setup.quick:
        return next(each.raw(place="cpu") for each in SHIPPED if each.name == start.published)
    return manifest(
        f"start-{name}", start.architecture, start.framework, small=setup.quick, options=start.options,
        artifact_format=start.artifact_format,
    )  # fmt: skip


def _inputs(start: Start, setup: Setup) -> dict[str, Any] | None:
    if start.framework == NUMPY:
        return None
    small = setup.quick and start.framework == TORCH and ARCHITECTURES[start.architecture].config == "ResNetConfig"
    given = inputs(start.architecture, start.framework, 32 if small else SIDE)
    if start.framework == TORCH and start.architecture in ("gpt2", "llama-300m"):
        del given["attention_mask"]
    return given


# -- at a daemon that has never seen the model ---------------------------------------------------------------------

_UNSEEN = "first arrival to the first answer in a fresh process, of models that use has converted later"
_UNSEEN_NOTE = (
    "A daemon of its own for each turn, which knows the model by its manifest and has read nothing of it. The first "
    "open is served from the published file; a later one has the model converted, which `from file` above measures. "
    "The process asks for the model (`session.prefetch`), imports the framework, and opens it. The file is in memory."
)
#: Pairs by model: a small one gains little beside its framework's import, whose time varies.
_PAIRS = {"minilm-l6-v2": 15, "resnet50": 11, "vgg16": 7}


def unseen(setup: Setup) -> Figure:
    """Measure the manifests' models; those whose framework is not here are left out and named."""
    from trims_bench.holding import first_answer_ns

    chosen = [each for each in SHIPPED if each.framework != MXNET or setup.has_mxnet]
    chosen = [each for each in chosen if each.name == "resnet50" or not setup.quick]
    figure = Figure("unseen", _UNSEEN, [], [_UNSEEN_NOTE])
    figure.notes += [f"Not measured: {each.title}." for each in SHIPPED if each not in chosen]
    for shipped in chosen:
        with setup.daemon() as daemon:  # it has the artifact made, if that has a builder
            daemon.add(shipped.manifest)
        artifact = artifact_of(shipped.manifest, setup.state_dir)
        found: dict[bool, list[int]] = {False: [], True: []}
        for number in range(setup.repeats(_PAIRS[shipped.name])):
            for alone in sorted(found, reverse=bool(number % 2)):
                found[alone].append(first_answer_ns(shipped, artifact, setup.environments(), alone=alone))
        ours, theirs = Samples("trims, never seen before", found[False]), Samples("framework alone", found[True])
        figure.comparisons.append(faster(shipped.title, ours, theirs, Bar(">=", 1.0)))
    return figure


def figure_of(start: Start, name: str, evaluated: Evaluated) -> Figure:
    """Return what an evaluation says of a start."""
    from trims_bench.evaluation.report.rows import discarded, rows

    found = rows(evaluated.samples)
    figure = Figure(name, start.title, list(_compared(start, evaluated.samples)), [_NOTE], evaluated.order.id)
    if found:
        least = min(found, key=lambda row: row.accounted)
        whole = Samples(f"accounted for, {least.title}", [round(least.accounted * 1e6)], "parts per million")
        value, bar = least.accounted * 100, Bar(">=", 97.0) if start.published else None
        figure.comparisons.append(Comparison("stages account for, least of all rows", value, "%", bar, [whole]))
    lost = {**discarded(evaluated.samples), **evaluated.unreachable}
    figure.notes += [f"Not counted: {what} ({why})." for what, why in lost.items()]
    return figure


def _compared(start: Start, samples: Sequence[Sample]) -> Iterator[Comparison]:
    groups: dict[tuple[str, str], list[Sample]] = {}
    for each in samples:
        if not each.why_not:
            groups.setdefault((each.tier, each.way), []).append(each)
    bars = start.bars
    for (tier, way), group in groups.items():
        alone = groups.get((_ALONE_FOR.get(tier, ""), "alone"))
        if way == "alone":
            continue
        title, whole, computed = f"{tier} {way}".removeprefix("- "), _ns(way, group), _compute(group)
        from_cpu = (tier, way) == ("cpu", "template")
        if alone is None:
            yield more(f"{title}, more than compute", whole, computed, Bar("<=", 15.0) if way == "hot" else None)
            continue
        # From its file a model is converted first; without that, `unseen` holds it against the framework.
        never_later = way == "fresh" and tier != "file" and bars.sooner is not None
        sooner = bars.sooner if from_cpu else Bar(">=", 1.0) if never_later else None
        yield _faster(f"{title}, times sooner", whole, _ns("alone", alone), sooner)
        yield _faster(
            f"{title}, ready times sooner", _ready(way, group), _ready("alone", alone), bars.ready if from_cpu else None
        )
        if from_cpu:
            yield more(f"{title}, more than compute", whole, computed, bars.more)
            if computed.median >= _LEAST_COMPUTE_NS:
                yield ratio(f"{title}, share of ideal", computed, whole, Bar(">=", 0.6))
            yield ratio("steady run, times the framework's", computed, _compute(alone), bars.steady)


def _faster(what: str, ours: Samples, theirs: Samples, bar: Bar | None) -> Comparison:
    """Compare pairs, if no sample was discarded; else medians."""
    if len(ours.values) == len(theirs.values):
        return faster(what, ours, theirs, bar)
    return Comparison(what, theirs.median / ours.median, "x", bar, (ours, theirs))


def _ns(way: str, group: Sequence[Sample]) -> Samples:
    return Samples(way, [round(each.seconds * 1e9) for each in group])


def ready_s(stages: Mapping[str, float]) -> float:
    """Return the seconds of a start that are the model's own."""
    return sum(taken for stage, taken in stages.items() if stage not in _OTHERS)


def _ready(way: str, group: Sequence[Sample]) -> Samples:
    return Samples(f"{way}, ready", [max(1, round(ready_s(each.stages) * 1e9)) for each in group])


def _compute(group: Sequence[Sample]) -> Samples:
    """Return the median of the later runs of each sample."""
    from statistics import median

    return Samples("later runs", [round(median(each.steady_s) * 1e9) for each in group])


PARTS = {
    **{name: Part(start.title, partial(evaluate_start, start, name)) for name, start in STARTS.items()},
    "unseen": Part(_UNSEEN, unseen),
}
