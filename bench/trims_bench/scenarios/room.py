"""More models than memory has room for: requests that load, run and drop one, and models that have no room at all."""

from __future__ import annotations

import importlib
import time
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

from trims_bench.child import call
from trims_bench.measuring import Bar, Comparison, Figure, Samples, middle, ratio
from trims_bench.models import ARCHITECTURES, TORCH, manifest
from trims_bench.scenarios import Part
from trims_bench.zoo import TOKEN_IDS, Load, clients, drop_pages, make_models

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup
    from trims_bench.zoo import Clients, Model

_PRESSURE = "12 models of 87 MiB, shared memory for 40 % of them, Zipf 1.0, 4 clients: load, run once, drop"
_PLANE = "load, run once, drop: requests served, over transformers' from_pretrained, by room, popularity and clients"
_MISS = "a model that is on disk and not in shared memory: module ready, and its runs"
_MODELS = 12


def zoo(setup: Setup, folder: Path, count: int) -> tuple[list[Model], dict[str, Any]]:
    """So many models, and how their shape differs from the usual."""
    small = ARCHITECTURES["minilm"].small
    shape: dict[str, Any] = dict(small) if setup.quick and isinstance(small, dict) else {}
    return make_models(folder / "models", count, shape), shape


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


@contextmanager
def _sides(models: Sequence[Model], count: int, runtime_dir: Path) -> Iterator[dict[str, Clients]]:
    with (
        clients("trims", models, count, runtime_dir) as ours,
        clients("transformers", models, count, runtime_dir) as alone,
    ):
        yield {"trims": ours, "from_pretrained": alone}


# -- one cell, in turns --------------------------------------------------------------------------------------------

_PRESSURE_NOTE = (
    "Four processes have imported their framework and ask without pause. A request loads a model, runs it once on 16 "
    "tokens with one thread, checks the answer and drops the model; theirs by BertModel.from_pretrained, which maps "
    "the file. All files are in the page cache. Sides take turns; the first turn of each is not counted."
)


def pressure(setup: Setup) -> Figure:
    """Measure both sides in turns, with one daemon."""
    load = Load(1.0, setup.size(4, 2), setup.seconds(10.0, 0.5))
    found: dict[str, list[list[int]]] = {}
    with setup.scratch() as folder:
        models, shape = zoo(setup, folder, setup.size(_MODELS, 3))
        with (
            zoo_daemon(setup, folder, models, shape, 0.4) as daemon,
            _sides(models, load.clients, daemon.runtime_dir) as sides,
        ):
            for number in range(1 + setup.repeats(5)):
                for name, side in sides.items():
                    turn = side.take(load)
                    if number:
                        found.setdefault(name, []).append(turn)
    served, slowest, median = (
        [Samples(name, [of(Samples(name, turn)) for turn in turns], unit) for name, turns in found.items()]
        for of, unit in (
            (lambda turn: len(turn.values), "requests"),
            (lambda turn: turn.percentile(0.99), "ns"),
            (lambda turn: turn.percentile(0.5), "ns"),
        )
    )
    compared = [
        ratio("requests served", served[0], served[1], Bar(">=", 1.8)),
        ratio("p99 of a request", slowest[0], slowest[1], Bar("<=", 0.35)),
        ratio("median of a request", median[0], median[1], None),
    ]
    return Figure("pressure", _PRESSURE, compared, [_PRESSURE_NOTE])


# -- the plane of memory, popularity and clients -------------------------------------------------------------------

_ROOMS, _ZIPFS, _CLIENTS = (0.1, 0.25, 0.4, 0.7, 1.2), (0.0, 1.0, 1.4), (1, 4, 8)
#: Number of clients at which cells with a dropped page cache are measured.
_CLIENTS_COLD = 4
_PLANE_NOTE = (
    "Models and requests as in `pressure`. Room: shared memory, as a share of the weights of all 12 models. Zipf: "
    "model number n is asked for as often as 1 / n ** s. Each cell is one turn of 4 s of each side, after one of 1 s; "
    "cold: the pages of all files were dropped from the page cache before each of them."
)


def plane(setup: Setup) -> Figure:
    """Measure with one daemon for each room, and the same processes for all its cells."""
    figure = Figure("plane", _PLANE, [], [_PLANE_NOTE])
    most = setup.size(max(_CLIENTS), 1)
    with setup.scratch() as folder:
        models, shape = zoo(setup, folder, setup.size(_MODELS, 3))
        for room in _ROOMS[: setup.size(len(_ROOMS), 1)]:
            with (
                zoo_daemon(setup, folder, models, shape, room) as daemon,
                _sides(models, most, daemon.runtime_dir) as sides,
            ):
                for zipf, count, cold in product(_ZIPFS[: setup.size(3, 1)], _CLIENTS, (False, True)):
                    if count <= most and (not cold or count == _CLIENTS_COLD):
                        figure.comparisons.append(_cell(setup, sides, folder, room, Load(zipf, count, 4.0), cold=cold))
    return figure


def _cell(setup: Setup, sides: dict[str, Clients], folder: Path, room: float, load: Load, *, cold: bool) -> Comparison:
    found = []
    for of, side in sides.items():
        if cold:
            drop_pages(folder)
        else:
            side.take(Load(load.zipf, load.clients, setup.seconds(1.0, 0.1)))
        found.append(Samples(of, side.take(Load(load.zipf, load.clients, setup.seconds(load.seconds, 0.2)))))
    many = "client" if load.clients == 1 else "clients"
    title = f"room {room:.0%}, Zipf {load.zipf:.1f}, {load.clients} {many}{', cold' if cold else ''}"
    return Comparison(title, len(found[0].values) / len(found[1].values), "x", Bar(">=", 1.0), found)


# -- no room at all ------------------------------------------------------------------------------------------------

_MISSED = {"GPT-2": "gpt2", "Llama, 300M": "llama-300m"}
_RUNS = 5
_WHAT = ("module ready", "first run", "steady run")
_MISS_NOTE = (
    "Fresh processes that have imported torch and the model's class, and connected. Memory is too small for the "
    "models, so an open maps the image on disk, which is in the page cache. The other side: the same image in shared "
    "memory. Runs are of 16 tokens with one thread; steady is the median of four more."
)


def miss(setup: Setup) -> Figure:
    """Measure each model at both places, in turns."""
    figure = Figure("miss", _MISS, [], [_MISS_NOTE])
    room = setup.size(4 << 30, 64 << 20)
    with (
        setup.scratch() as folder,
        setup.daemon(folder / "small", cpu_capacity_bytes=4096) as small,
        setup.daemon(folder / "large", cpu_capacity_bytes=room) as large,
    ):
        for title, architecture in list(_MISSED.items())[: setup.size(len(_MISSED), 1)]:
            given = manifest(architecture, architecture, TORCH, small=setup.quick)
            for daemon in (small, large):
                daemon.add({**given, "residency": {"persist": "always"}})
            large.load(architecture, place="cpu")
            figure.comparisons += _missed(setup, title, architecture, {"disk": small, "cpu": large})
    return figure


def _missed(setup: Setup, title: str, name: str, daemons: dict[str, DaemonProcess]) -> Iterator[Comparison]:
    found: dict[str, list[list[int]]] = {"disk": [], "cpu": []}
    for number in range(setup.uncounted + setup.repeats(9)):
        for place, daemon in daemons.items():
            taken = call(open_and_run, {"runtime_dir": str(daemon.runtime_dir), "name": name, "place": place})
            if number >= setup.uncounted:
                found[place].append(taken)
    for number, what in enumerate(_WHAT):
        ours, theirs = (Samples(f"{what}, {place}", [row[number] for row in rows]) for place, rows in found.items())
        if number == 0:
            yield middle(f"{title}: {what}", ours, Bar("<=", 10.0), theirs)
        else:
            yield ratio(f"{title}: {what}, times memory's", ours, theirs, None)


def open_and_run(*, runtime_dir: str, name: str, place: str) -> list[int]:
    """Nanoseconds to the module, of the first run, and of a later one."""
    import torch

    import trims

    getattr(importlib.import_module("transformers"), ARCHITECTURES[name].name)
    torch.set_num_threads(1)
    with trims.connect(runtime_dir) as session:
        began = time.perf_counter_ns()
        weights = session.open(name)
        module = trims.torch.module(weights)
        ready = time.perf_counter_ns() - began
        assert weights.place == place, f"{name} lies at {weights.place}"
        runs = []
        tokens = torch.tensor([TOKEN_IDS])
        with torch.inference_mode():
            for _ in range(_RUNS):
                began = time.perf_counter_ns()
                module(tokens)
                runs.append(time.perf_counter_ns() - began)
        del module
        weights.close()
    return [ready, runs[0], sorted(runs[1:])[(_RUNS - 1) // 2]]


PARTS = {"pressure": Part(_PRESSURE, pressure), "plane": Part(_PLANE, plane), "miss": Part(_MISS, miss)}
