"""A request for a resident model that no process runs: from nothing to the answer, over a process of the framework."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from trims_bench.child import call
from trims_bench.endpoint import EndpointProcess, environment_of, image, tokens
from trims_bench.figures import Bar, Comparison, Figure, Samples, faster, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.endpoint import Inputs
    from trims_bench.scenarios.base import Setup

TITLE = "a request for a resident model that no process runs, by the endpoint, over a fresh process of the framework"
_SOONER, _SOONER_MXNET = Bar(">=", 20.0), Bar(">=", 8.0)
_MORE, _MORE_MXNET = Bar("<=", 30.0), Bar("<=", 120.0)
_MORE_HOT = Bar("<=", 15.0)
_IDEAL = Bar(">=", 0.6)
#: Below this compute, a share of it says more about the fixed part of a request than about the way to the answer.
_LEAST_COMPUTE_NS = 50_000_000
#: Settings of a predictor, without and with a hot spare.
_COLD, _HOT = {"threads": 2, "hot": 0}, {"threads": 2, "hot": 1}
_NOTE = (
    "Ours: an HTTP request (binary tensors) for a model that is in shared memory and that no predictor runs; the "
    "template's spare takes it. Theirs: from the start of a fresh Python process to the same answer, the file in the "
    "page cache. More than compute: the request's time less `predict_s` of the next request, which the same predictor "
    "answers. Share of ideal: that compute over the whole request, for models that compute 50 ms and more. Two "
    "threads on both sides. After each turn the predictor ends and a spare is made again, which is not timed. Hot: the "
    "same with `predictor: {hot: 1}` in the manifest, so a hot spare takes the request; another one is made after each "
    "turn, which is not timed."
)
_TOKENS = list(range(1000, 1016))
_SMALL_BERT = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 1100}


@dataclass(frozen=True, slots=True)
class Kind:
    """A model of transformers: its class, its configuration's, and what the latter has beside the usual."""

    title: str
    names: tuple[str, str]
    shape: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)

    @property
    def sees_images(self) -> bool:
        """Return whether the model reads images; else it reads tokens."""
        return self.names[0].startswith("ResNet")

    def inputs(self, side: int) -> Inputs:
        """Return the inputs of one request."""
        if self.sees_images:
            return image("pixel_values", side)
        return tokens("input_ids", count=len(_TOKENS))


RESNET50 = Kind(
    "ResNet-50",
    ("ResNetForImageClassification", "ResNetConfig"),
    {},
    {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]},
)
_KINDS = (
    Kind(
        "MiniLM",
        ("BertModel", "BertConfig"),
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
        _SMALL_BERT,
    ),
    Kind("BERT-base", ("BertModel", "BertConfig"), {}, _SMALL_BERT),
    Kind("GPT-2", ("GPT2LMHeadModel", "GPT2Config"), {}, {"n_embd": 24, "n_layer": 1, "vocab_size": 1100}),
    RESNET50,
)


def run(setup: Setup) -> Figure:
    """Measure each model in turns: the endpoint, then a fresh process."""
    figure = Figure("predictor", TITLE, [], [_NOTE])
    frameworks = "torch,onnxruntime" + (",mxnet" if setup.has_mxnet else "")
    flags = ["--preload", frameworks, "--hot-spares", "8", *environment_of(setup.mxnet if setup.has_mxnet else None)]
    with setup.scratch() as folder, setup.daemon() as daemon, EndpointProcess(daemon.runtime_dir, *flags) as endpoint:
        for kind in _KINDS[:1] if setup.quick else _KINDS:
            figure.comparisons += _torch(setup, folder, daemon, endpoint, kind)
        figure.comparisons += _shipped(setup, daemon, endpoint)
    return figure


def _torch(
    setup: Setup, folder: Path, daemon: DaemonProcess, endpoint: EndpointProcess, kind: Kind
) -> Iterator[Comparison]:
    name, side = make_and_register(setup, folder, daemon, kind, _COLD), setup.size(224, 32)
    daemon.load(name, place="cpu")
    alone = {**_given(setup, folder, kind), "threads": 2}

    def theirs() -> int:
        began = time.perf_counter_ns()
        call(answer_alone, alone)
        return time.perf_counter_ns() - began

    turns = _Turns(endpoint, "torch", name, kind.inputs(side))
    yield from turns.compare(kind.title, setup.repeats(9), theirs, _SOONER, _MORE)
    _register(setup, folder, daemon, kind, _HOT)
    yield from turns.hot(kind.title, setup.repeats(9))
    _register(setup, folder, daemon, kind, _COLD)


def make_and_register(
    setup: Setup, folder: Path, daemon: DaemonProcess, kind: Kind, predictor: Mapping[str, object]
) -> str:
    """Write a model and have the daemon know it, with this `predictor` in its manifest; returns its name."""
    call(make, _given(setup, folder, kind))
    return _register(setup, folder, daemon, kind, predictor)


def _given(setup: Setup, folder: Path, kind: Kind) -> dict[str, Any]:
    """Return the arguments that `make` and `answer_alone` need."""
    side = setup.size(224, 32) if kind.sees_images else 0
    shape = kind.small if setup.quick else kind.shape
    return {"names": kind.names, "shape": shape, "folder": str(folder / kind.title), "side": side}


def _register(setup: Setup, folder: Path, daemon: DaemonProcess, kind: Kind, predictor: Mapping[str, object]) -> str:
    given = _given(setup, folder, kind)
    arguments = {"model": kind.names[0], "config": kind.names[1], "shape": given["shape"]}
    options = {"module": "trims_bench.builders.transformers_torch:build_module", "module_args": arguments}
    artifact = {"path": f"{given['folder']}/model.safetensors", "options": options}
    return daemon.register({"name": kind.title.lower(), "artifact": artifact, "predictor": dict(predictor)})


def _shipped(setup: Setup, daemon: DaemonProcess, endpoint: EndpointProcess) -> Iterator[Comparison]:
    """Models of the manifests folder, of the other frameworks."""
    from trims.registry.base import read_manifest
    from trims_bench.repository import MANIFESTS
    from trims_bench.runs import artifact_of
    from trims_bench.runs import run as run_worker

    onnx, _ = read_manifest(MANIFESTS / "resnet50.yaml")
    kinds: list[tuple[str, str, dict[str, Any], str, Path | None, str, Bar, Bar]]
    kinds = [("ResNet-50, ONNX Runtime", "onnxruntime", onnx, "resnet50", None, "image", _SOONER, _MORE)]
    if setup.has_mxnet:
        bars = (_SOONER_MXNET, _MORE_MXNET)
        resnet = setup.resnet50_mxnet
        kinds.append(("ResNet-50, MXNet", "mxnet", resnet, "resnet50_mxnet", setup.mxnet, "data", *bars))
        kinds.append(("VGG-16, MXNet", "mxnet", setup.vgg16, "vgg16", setup.mxnet, "data", *bars))
    for title, framework, manifest, workload, python, given, sooner, more in kinds:
        daemon.register({**manifest, "predictor": _COLD})
        daemon.load(manifest["name"], place="cpu")
        artifact = artifact_of(manifest, daemon.state_dir)

        def theirs(workload: str = workload, artifact: Path = artifact, python: Path | None = python) -> int:
            return round(run_worker(workload, f"alone:{artifact}", python=python).total_s * 1e9)

        turns = _Turns(endpoint, framework, manifest["name"], image(given))
        yield from turns.compare(title, setup.repeats(7), theirs, sooner, more)
        daemon.register({**manifest, "predictor": _HOT})
        yield from turns.hot(title, setup.repeats(7), _MORE_MXNET if framework == "mxnet" else _MORE_HOT)
        daemon.register({**manifest, "predictor": _COLD})


class _Turns:
    """Requests of one model, cold and warm."""

    def __init__(self, endpoint: EndpointProcess, framework: str, name: str, inputs: Inputs) -> None:
        self._endpoint = endpoint
        self._framework = framework
        self._name = name
        self._inputs = inputs

    def compare(self, title: str, count: int, theirs: Any, sooner: Bar, more: Bar) -> Iterator[Comparison]:
        """Measure how many times sooner a cold request is, and how many ms it takes beside its compute."""
        for _ in range(2):  # the template learns what the model needs
            self._endpoint.infer(self._name, self._inputs)
            self._endpoint.infer(self._name, self._inputs, keep_alive=0)
            self._endpoint.await_spare(self._framework, self._name)
        cold, compute, alone = [], [], []
        for _ in range(count):
            taken, told = self._timed()
            assert told["cold"], f"{title} was not cold: {told}"
            _, again = self._timed(keep_alive=0)
            cold.append(taken)
            compute.append(round(again["predict_s"] * 1e9))
            alone.append(theirs())
            self._endpoint.await_spare(self._framework, self._name)
        ours = Samples("request", cold)
        yield faster(title, ours, Samples("fresh process", alone), sooner)
        extra = median(taken - computed for taken, computed in zip(cold, compute, strict=True)) / 1e6
        yield Comparison(f"{title}, more than compute", extra, "ms", more, (ours, Samples("compute", compute)))
        yield from share_of_ideal(title, ours, Samples("compute", compute), _IDEAL)

    def hot(self, title: str, count: int, bar: Bar = _MORE_HOT) -> Iterator[Comparison]:
        """Measure how many ms a request to a hot spare takes beside its compute."""
        taken, compute = [], []
        for _ in range(2):  # the manifest is new to the endpoint; each request more would end a hot spare in the making
            self._endpoint.infer(self._name, self._inputs, keep_alive=0)
            self._endpoint.await_spare(self._framework, self._name)
        for number in range(1 + count):
            self._endpoint.await_hot_spare(self._name)
            cold, told = self._timed()
            assert told["predictor"] == "hot", f"{title} had no hot spare: {told}"
            _, again = self._timed(keep_alive=0)
            if number:  # the first one knew no request's shapes to rehearse
                taken.append(cold)
                compute.append(round(again["predict_s"] * 1e9))
        extra = median(cold - computed for cold, computed in zip(taken, compute, strict=True)) / 1e6
        both = (Samples("request", taken), Samples("compute", compute))
        yield Comparison(f"{title}, hot, more than compute", extra, "ms", bar, both)
        yield from share_of_ideal(f"{title}, hot", *both, None)

    def _timed(self, **parameters: object) -> tuple[int, dict[str, Any]]:
        began = time.perf_counter_ns()
        answer, _ = self._endpoint.infer(self._name, self._inputs, **parameters)
        return time.perf_counter_ns() - began, answer["parameters"]


def share_of_ideal(title: str, whole: Samples, compute: Samples, bar: Bar | None) -> Iterator[Comparison]:
    """Compare a request with its compute, if that is long enough for the bar to mean something."""
    if compute.median >= _LEAST_COMPUTE_NS:
        value = share("", compute, whole, None).value
        yield Comparison(f"{title}, share of ideal", value, "x", bar, (whole, compute))


def make(*, names: tuple[str, str], shape: dict[str, Any], folder: str, side: int) -> None:
    """Write a model with seeded random weights."""
    import torch
    from transformers.utils import logging

    from trims_bench.builders.transformers_torch import build_module

    del side
    logging.disable_progress_bar()
    torch.manual_seed(1)
    build_module(model=names[0], config=names[1], shape=shape).save_pretrained(folder)


def answer_alone(*, names: tuple[str, str], shape: dict[str, Any], folder: str, side: int, threads: int) -> float:
    """Answer as a process that has the framework alone: import it, load the model, run it once."""
    import torch
    from transformers.utils import logging

    del shape
    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    module = getattr(importlib.import_module("transformers"), names[0]).from_pretrained(folder)
    with torch.inference_mode():
        given = torch.full((1, 3, side, side), 0.5) if side else torch.tensor([_TOKENS])
        return float(module(given)[0].abs().mean())
