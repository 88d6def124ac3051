"""A cold miss to the first answer: never slower than the framework alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims_bench.figures import Bar, Comparison, Figure, Samples, faster
from trims_bench.zoo import drop_pages

if TYPE_CHECKING:
    from trims_bench.daemon import DaemonProcess
    from trims_bench.runs import Model, Report
    from trims_bench.scenarios.base import Setup

TITLE = "cold miss to the first answer in a fresh process, against the framework alone"
_NOTE = (
    "Cold: evicted from memory, its image on disk and in the page cache, as is the framework's own file. Page cache "
    "dropped: before each turn the kernel forgets the pages of the images and of the framework's file."
)
#: Pairs by model. A small one gains little beside its framework's import, whose time varies: it takes more pairs.
_REPEATS = {"minilm-l6-v2": 15, "resnet50": 11, "vgg16": 7}


def run(setup: Setup) -> Figure:
    """The demo's models; those whose framework is not here are left out and named."""
    from trims_bench.runs import MODELS

    with setup.daemon() as daemon:
        models = [model for model in MODELS if model.workload != "vgg16" or setup.has_mxnet]
        chosen = [model for model in models if model.name == "resnet50" or not setup.quick]
        compared = [_compare(model, setup, daemon, dropped=dropped) for model in chosen for dropped in (False, True)]
    notes = [f"Not measured: {model.title}." for model in MODELS if model not in chosen]
    return Figure("cold", TITLE, compared, [*notes, _NOTE])


def _compare(model: Model, setup: Setup, daemon: DaemonProcess, *, dropped: bool) -> Comparison:
    from trims_bench.runs import artifact_of, run
    from trims_bench.workloads import workload

    name = daemon.add(model.manifest)
    artifact = artifact_of(model.manifest, setup.state_dir)
    python = setup.mxnet if model.workload == "vgg16" else None
    reports: dict[str, list[Report]] = {f"trims:{name}": [], f"alone:{artifact}": []}
    for number in range(setup.repeats(_REPEATS[model.name])):
        # A B, B A: the side that runs second may profit from, or pay for, what the first one left.
        for how in sorted(reports, reverse=bool(number % 2)):
            daemon.evict(name)
            if dropped:
                drop_pages(artifact.parent)
                drop_pages(setup.state_dir / "images")
            reports[how].append(run(model.workload, how, python=python, runtime_dir=daemon.runtime_dir))
    daemon.evict(name)
    for cold, alone in zip(*reports.values(), strict=True):
        agreement = workload(model.workload).same(alone.answer, cold.answer)
        assert agreement.equal, f"{model.title}: {agreement}"
    ours, theirs = (
        Samples(of, [round(report.total_s * 1e9) for report in side])
        for of, side in zip(("trims, cold", "framework alone"), reports.values(), strict=True)
    )
    return faster(f"{model.title}, page cache dropped" if dropped else model.title, ours, theirs, Bar(">=", 1.0))
