"""Many processes with one model: how much memory its weights take of them all.

Measured after an inference, with everything still attached, from /proc/PID/smaps: proportional set size (PSS) counts
a page that n processes share as 1/n in each, so the sum over processes counts every page once.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from trims_bench.endpoint import EndpointClient, EndpointError, EndpointProcess, as_inputs
from trims_bench.holding import held
from trims_bench.measuring import Bar, Comparison, Figure, Samples, share
from trims_bench.models import MXNET, ONNX, TORCH, artifact_of, inputs, manifest
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims_bench.daemon import DaemonProcess
    from trims_bench.endpoint import Inputs
    from trims_bench.scenarios.base import Setup
    from trims_bench.smaps import Held

_TITLE = "8 processes, or 6 predictors, with one model: proportional memory of the weights, against one copy"
_BAR = Bar("<=", 1.05)
#: Rounds of requests at once after which each predictor must have been started.
_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class _Case:
    """One framework and model.

    Attributes:
        in_place: Whether the framework may re-order weights in its own copy-on-write pages.
    """

    title: str
    architecture: str
    framework: str
    env: dict[str, str] = field(default_factory=dict)
    in_place: bool = False
    options: dict[str, Any] = field(default_factory=dict)


_VGG16 = _Case("MXNet VGG-16, oneDNN", "vgg16-mxnet", MXNET, in_place=True)
_CASES = (
    _Case("ONNX Runtime ResNet-50", "resnet50", ONNX, options={"prepack": False}),
    _Case("PyTorch ResNet-50", "resnet50", TORCH),
    _Case("ONNX Runtime BERT-base, packed", "bert-base", ONNX, options={"prepack": "shared"}),
    _VGG16,
    replace(_VGG16, title="MXNet VGG-16, no oneDNN", env={"MXNET_MKLDNN_ENABLED": "0"}),
)


def memory(setup: Setup) -> Figure:
    """Measure every framework that is here."""
    figure = Figure(
        "memory", _TITLE, [], ["Private: what the end of one of the processes would give back, heaps included."]
    )
    cases = [case for case in _CASES if case.framework != MXNET or setup.has_mxnet][: setup.size(len(_CASES), 1)]
    if not setup.has_mxnet:
        figure.notes.append("MXNet not measured: no environment for it.")
    with setup.daemon() as daemon:
        for case in cases:
            figure.comparisons += _compare(case, setup, daemon)
        figure.comparisons += _predictors(setup, daemon)
    return figure


def _compare(case: _Case, setup: Setup, daemon: DaemonProcess) -> Iterator[Comparison]:
    from trims_bench.smaps import of_process, of_weights

    count, name = setup.size(8, 2), f"held-{case.architecture}-{case.framework}"
    given = manifest(name, case.architecture, case.framework, small=setup.quick, options=case.options)
    one_copy = daemon.load(daemon.add(given)).nbytes
    processes = partial(
        held, count, model=given, arrays=(case.architecture, case.framework), runtime_dir=daemon.runtime_dir,
        python=setup.mxnet if case.framework == MXNET else None, env=case.env,
    )  # fmt: skip
    with processes() as pids:
        segment = daemon.location(name)
        weights = [of_weights(pid, segment) for pid in pids]
        over = [of_process(pid) for pid in pids]
    with processes(artifact=artifact_of(given, setup.state_dir)) as pids:
        alone = [of_process(pid) for pid in pids]
    daemon.evict(name)
    shared = Samples("weights, by process", [each.pss - each.written for each in weights], "bytes")
    counted = sum(shared.values) + (0 if case.in_place else sum(each.written for each in weights))
    what = "shared part" if case.in_place else "weights"
    copy = Samples("one copy", [one_copy], "bytes")
    yield Comparison(f"{case.title}: {what} / one copy", counted / one_copy, "x", _BAR, (shared, copy))
    private = [
        Samples(side, [each.private for each in found], "bytes")
        for side, found in (("over trims", over), ("alone", alone))
    ]
    yield share(f"{case.title}: private / process", private[0], private[1], None)


def _predictors(setup: Setup, daemon: DaemonProcess) -> Iterator[Comparison]:
    """Predictors of a ResNet-50 behind an endpoint, all of which have answered; each answer reads all weights."""
    count = setup.size(6, 2)
    given = manifest("predicted", "resnet50", TORCH, small=setup.quick, instances=count, threads=1, hot=0)
    name = daemon.register(given)
    one_copy = daemon.load(name, place="cpu").nbytes
    with EndpointProcess(daemon.runtime_dir, "--preload", "torch", "--hot-spares", "0") as endpoint:
        _start_all(endpoint, name, count, as_inputs(inputs("resnet50", TORCH, setup.size(224, 32))))
        found = _held_by(endpoint, daemon.location(name))
    daemon.evict(name)
    assert len(found) == count, f"{len(found)} predictors map the weights, not {count}"
    weights = Samples("weights, by predictor", [each.pss for each, _ in found], "bytes")
    private = Samples("private, of a predictor", [whole.private for _, whole in found], "bytes")
    copy, what = Samples("one copy", [one_copy], "bytes"), f"{count} predictors, PyTorch ResNet-50"
    yield Comparison(f"{what}: weights / one copy", sum(weights.values) / one_copy, "x", _BAR, (weights, copy))
    yield Comparison(f"{what}: private / one copy", median(private.values) / one_copy, "x", None, (private, copy))


def _start_all(endpoint: EndpointProcess, name: str, count: int, given: Inputs) -> None:
    """Ask at once, until so many predictors run. Raises EndpointError."""

    def ask(_: int) -> None:
        with contextlib.closing(EndpointClient(endpoint.port)) as client:
            client.infer(name, given)

    for _ in range(2):  # the template learns what the model needs, so that predictors share it
        endpoint.infer(name, given, keep_alive=0)
        endpoint.await_spare("torch", name)
    with ThreadPoolExecutor(2 * count) as pool:
        for _ in range(_ROUNDS):
            list(pool.map(ask, range(2 * count)))
            if endpoint.state()["models"][name]["idle"] == count:
                return
    raise EndpointError(f"{count} predictors of {name} did not come up: {endpoint.state()}")


def _held_by(endpoint: EndpointProcess, segment: str) -> list[tuple[Held, Held]]:
    """Return for each process behind the endpoint that maps a segment: the memory held of the segment, and in all."""
    from trims_bench.smaps import below, of_process, of_weights

    pids = [pid for pid in below(endpoint.pid) if of_weights(pid, segment).rss]
    return [(of_weights(pid, segment), of_process(pid)) for pid in pids]


PARTS = {"memory": Part(_TITLE, memory)}
