"""First arrival of a model that needs a conversion: its first answer comes no later than without trims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims_bench.figures import Bar, Comparison, Figure, Samples, faster
from trims_bench.unseen import daemon_that_never_saw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trims_bench.runs import Model, Report
    from trims_bench.scenarios.base import Setup

TITLE = "first arrival to the first answer in a fresh process, of models that use has converted later"
_NOTE = (
    "A daemon of its own for each turn, which knows the model by its manifest and has read nothing of it. The first "
    "open is served from the published file; a later one has the model converted. Files are in the page cache. The "
    "model alone: to open and build it, once the framework is imported."
)
#: Pairs by model, as in `cold`: a small model gains little beside its framework's import.
_REPEATS = {"minilm-l6-v2": 15, "resnet50": 11, "vgg16": 7}


def run(setup: Setup) -> Figure:
    """The demo's models; those whose framework is not here are left out and named."""
    from trims_bench.runs import MODELS

    models = [model for model in MODELS if model.workload != "vgg16" or setup.has_mxnet]
    chosen = [model for model in models if model.name == "resnet50" or not setup.quick]
    compared = [each for model in chosen for each in _compare(model, setup)]
    notes = [f"Not measured: {model.title}." for model in MODELS if model not in chosen]
    return Figure("unseen", TITLE, compared, [*notes, _NOTE])


def _compare(model: Model, setup: Setup) -> Iterator[Comparison]:
    from trims_bench.runs import artifact_of, run
    from trims_bench.workloads import workload

    with setup.daemon() as daemon:  # it has the artifact made, if that has a builder
        daemon.add(model.manifest)
    artifact = artifact_of(model.manifest, setup.state_dir)
    python = setup.mxnet if model.workload == "vgg16" else None
    sides: dict[str, list[Report]] = {"trims": [], "alone": []}
    for number in range(setup.repeats(_REPEATS[model.name])):
        for side in sorted(sides, reverse=bool(number % 2)):
            if side == "alone":
                sides[side].append(run(model.workload, f"alone:{artifact}", python=python))
                continue
            with daemon_that_never_saw(model.manifest, artifact, setup.mxnet if python else None) as daemon:
                how, runtime_dir = f"trims:{model.name}", daemon.runtime_dir
                sides[side].append(run(model.workload, how, python=python, runtime_dir=runtime_dir))
    for ours, alone in zip(*sides.values(), strict=True):
        agreement = workload(model.workload).same(alone.answer, ours.answer)
        assert agreement.equal, f"{model.title}: {agreement}"
    yield faster(model.title, *_samples(sides, lambda report: report.total_s), Bar(">=", 1.0))
    yield faster(f"{model.title}, the model alone", *_samples(sides, lambda report: report.ready_s), None)


def _samples(sides: Mapping[str, Sequence[Report]], seconds: Callable[[Report], float]) -> tuple[Samples, Samples]:
    """Ours, then theirs."""
    ours, theirs = ([round(seconds(report) * 1e9) for report in sides[side]] for side in ("trims", "alone"))
    return Samples("trims, never seen before", ours), Samples("framework alone", theirs)
