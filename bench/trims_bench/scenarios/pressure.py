"""Many models, memory for a part of them: requests that load, run and drop a model, beside transformers' own loader."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trims_bench.figures import Bar, Comparison, Figure, Samples
from trims_bench.zoo import Load, clients, make_models

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup
    from trims_bench.zoo import Model

TITLE = "12 models of 87 MiB, shared memory for 40 % of them, Zipf 1.0, 4 clients: load, run once, drop"
_MODELS = 12
_ROOM = 0.4
_LOAD = Load(zipf=1.0, clients=4, seconds=10.0)
#: Shape of a model whose size does not matter.
QUICK_SHAPE = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 1100}
_NOTE = (
    "Four processes have imported their framework and ask without pause. A request loads a model, runs it once on 16 "
    "tokens with one thread, checks the answer and drops the model; theirs by BertModel.from_pretrained, which maps "
    "the file. All files are in the page cache. Sides take turns; the first turn of each is not counted."
)


def run(setup: Setup) -> Figure:
    """Measure both sides in turns, with one daemon."""
    with setup.scratch() as folder:
        models, shape = zoo(setup, folder)
        with zoo_daemon(setup, folder, models, shape, _ROOM) as daemon:
            ours, theirs = _turns(setup, models, daemon)
            return Figure("pressure", TITLE, [*_compare(ours, theirs)], [_NOTE])


def zoo(setup: Setup, folder: Path) -> tuple[list[Model], dict[str, Any]]:
    """The models, and how their shape differs from the usual."""
    shape: dict[str, Any] = QUICK_SHAPE if setup.quick else {}
    return make_models(folder / "models", setup.size(_MODELS, 3), shape), shape


@contextmanager
def zoo_daemon(
    setup: Setup,
    folder: Path,
    models: Sequence[Model],
    shape: dict[str, Any],
    room: float,
    *,
    predictor: dict[str, Any] | None = None,
) -> Iterator[DaemonProcess]:
    """A daemon with memory for this share of the models, all of which have images on disk.

    `predictor` stands in the manifests.
    """
    # A hundredth more than the weights: header, index and the skeleton's own tensors.
    capacity = int(sum(model.nbytes for model in models) * 1.01 * room)
    with setup.daemon(folder / "state", cpu_capacity_bytes=max(capacity, 1 << 20)) as daemon:
        for model in models:
            daemon.add({**model.manifest(shape), "predictor": predictor or {}})
        yield daemon


def _turns(setup: Setup, models: list[Model], daemon: DaemonProcess) -> tuple[list[list[int]], list[list[int]]]:
    seconds = 0.5 if setup.quick else _LOAD.seconds
    load = Load(_LOAD.zipf, setup.size(_LOAD.clients, 2), seconds)
    ours, theirs = [], []
    with (
        clients("trims", models, load.clients, daemon.runtime_dir) as at_trims,
        clients("transformers", models, load.clients, daemon.runtime_dir) as alone,
    ):
        for _ in range(1 + setup.repeats(5)):
            ours.append(at_trims.take(load))
            theirs.append(alone.take(load))
    return ours[1:], theirs[1:]


def _compare(ours: list[list[int]], theirs: list[list[int]]) -> list[Comparison]:
    """Requests served, and the 99th percentile of their times, by turns."""
    served = [Samples(of, [len(turn) for turn in turns], "requests") for of, turns in _named(ours, theirs)]
    slowest = [
        Samples(of, [Samples(of, turn).percentile(0.99) for turn in turns]) for of, turns in _named(ours, theirs)
    ]
    middle = [Samples(of, [int(Samples(of, turn).median) for turn in turns]) for of, turns in _named(ours, theirs)]
    return [
        _ratio("requests served", served, Bar(">=", 1.8)),
        _ratio("p99 of a request", slowest, Bar("<=", 0.35)),
        _ratio("median of a request", middle, None),
    ]


def _named(ours: list[list[int]], theirs: list[list[int]]) -> list[tuple[str, list[list[int]]]]:
    return [("trims", ours), ("from_pretrained", theirs)]


def _ratio(what: str, sides: list[Samples], bar: Bar | None) -> Comparison:
    return Comparison(what, sides[0].median / sides[1].median, "x", bar, sides)
