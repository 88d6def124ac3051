"""Many processes with one model: how much memory its weights take of them all.

Measured after an inference, with everything still attached, from /proc/PID/smaps: proportional set size (PSS) counts
a page that n processes share as 1/n in each, so the sum over processes counts every page once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trims_bench.figures import Bar, Comparison, Figure, Samples, share

if TYPE_CHECKING:
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup
    from trims_bench.smaps import Held

TITLE = "8 processes with one model: proportional memory of the weights, against one copy"
_BAR = Bar("<=", 1.05)


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
