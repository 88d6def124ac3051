"""Many processes with one model: how much memory its weights take of them all.

Measured after an inference, with everything still attached, from /proc/PID/smaps: proportional set size (PSS) counts
a page that n processes share as 1/n in each, so the sum over processes counts every page once.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from trims_bench.endpoint import EndpointClient, EndpointError, EndpointProcess
from trims_bench.figures import Bar, Comparison, Figure, Samples, share

if TYPE_CHECKING:
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.endpoint import Inputs
    from trims_bench.scenarios.base import Setup
    from trims_bench.smaps import Held

TITLE = "8 processes, or 6 predictors, with one model: proportional memory of the weights, against one copy"
_BAR = Bar("<=", 1.05)
_PREDICTORS = 6
#: Rounds of requests at once after which each predictor must have been started.
_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class _Case:
    """One framework.

    Attributes:
        env: Of the workers.
        in_place: True if the framework may re-order weights in its own copy-on-write pages.
    """

    title: str
    workload: str
    manifest: Path | dict[str, Any]
    python: Path | None = None
    env: tuple[tuple[str, str], ...] = ()
    in_place: bool = False


def run(setup: Setup) -> Figure:
    """Every framework that is here."""
    from trims_bench.repository import MANIFESTS
    from trims_bench.scenarios.torch import RESNET50

    cases = [
        _Case("PyTorch ResNet-50", "resnet50_torch", RESNET50.manifest),
        _Case("ONNX Runtime ResNet-50", "resnet50", MANIFESTS / "resnet50.yaml"),
    ]
    notes = ["Private: what the end of one of the processes would give back, its framework's heap included."]
    if setup.has_mxnet:
        mxnet = _Case("MXNet VGG-16, oneDNN", "vgg16", setup.vgg16, setup.mxnet, in_place=True)
        cases += [mxnet, replace(mxnet, title="MXNet VGG-16, no oneDNN", env=(("MXNET_MKLDNN_ENABLED", "0"),))]
    else:
        notes.append("MXNet not measured: no environment for it.")
    with setup.daemon() as daemon:
        compared = [each for case in cases[1 if setup.quick else 0 :] for each in _compare(case, setup, daemon)]
        compared += _predictors(setup, daemon)
    return Figure("memory", TITLE, compared, notes)


def _compare(case: _Case, setup: Setup, daemon: DaemonProcess) -> list[Comparison]:
    from trims_bench.runs import artifact_of, held
    from trims_bench.smaps import of_process, of_weights

    count, env = setup.size(8, 2), dict(case.env)
    name = daemon.add(case.manifest)
    one_copy = daemon.load(name).nbytes
    place = daemon.runtime_dir
    with held(case.workload, f"trims:{name}", count, python=case.python, runtime_dir=place, env=env) as workers:
        segment = daemon.location(name)
        weights = [of_weights(pid, segment) for pid in workers]
        over = [of_process(pid) for pid in workers]
    artifact = artifact_of(case.manifest, setup.state_dir)
    with held(case.workload, f"alone:{artifact}", count, python=case.python, env=env) as workers:
        alone = [of_process(pid) for pid in workers]
    daemon.evict(name)
    return _figures(case, one_copy, weights, over, alone)


def _predictors(setup: Setup, daemon: DaemonProcess) -> list[Comparison]:
    """Predictors of a ResNet-50 behind an endpoint, all of which have answered; each answer reads all weights."""
    from trims_bench.endpoint import image
    from trims_bench.scenarios.predictor import RESNET50, make_and_register

    count = setup.size(_PREDICTORS, 2)
    with setup.scratch() as folder:
        name = make_and_register(setup, folder, daemon, RESNET50, {"instances": count, "threads": 1, "hot": 0})
        one_copy = daemon.load(name, place="cpu").nbytes
        with EndpointProcess(daemon.runtime_dir, "--preload", "torch", "--hot-spares", "0") as endpoint:
            _start_all(endpoint, name, count, image("pixel_values", setup.size(224, 32)))
            found = _held_by(endpoint, daemon.location(name))
        daemon.evict(name)
    assert len(found) == count, f"{len(found)} predictors map the weights, not {count}"
    weights = Samples("weights, by predictor", [held.pss for held, _ in found], "bytes")
    private = Samples("private, of a predictor", [whole.private for _, whole in found], "bytes")
    copy, what = Samples("one copy", [one_copy], "bytes"), f"{count} predictors, PyTorch ResNet-50"
    return [
        Comparison(f"{what}: weights / one copy", sum(weights.values) / one_copy, "x", _BAR, (weights, copy)),
        Comparison(f"{what}: private / one copy", median(private.values) / one_copy, "x", None, (private, copy)),
    ]


def _start_all(endpoint: EndpointProcess, name: str, count: int, inputs: Inputs) -> None:
    """Ask at once, until so many predictors run. Raises EndpointError."""

    def ask(_: int) -> None:
        with contextlib.closing(EndpointClient(endpoint.port)) as client:
            client.infer(name, inputs)

    for _ in range(2):  # the template learns what the model needs, so that predictors share it
        endpoint.infer(name, inputs, keep_alive=0)
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


def _figures(case: _Case, one_copy: int, weights: list[Held], over: list[Held], alone: list[Held]) -> list[Comparison]:
    shared = Samples("weights, by process", [held.pss - held.written for held in weights], "bytes")
    written = sum(held.written for held in weights)
    copy = Samples("one copy", [one_copy], "bytes")
    counted = sum(shared.values) + (0 if case.in_place else written)
    what = "shared part" if case.in_place else "weights"
    private = (
        Samples("over trims", [held.private for held in over], "bytes"),
        Samples("alone", [held.private for held in alone], "bytes"),
    )
    return [
        Comparison(f"{case.title}: {what} / one copy", counted / one_copy, "x", _BAR, (shared, copy)),
        share(f"{case.title}: private / process", *private, None),
    ]
