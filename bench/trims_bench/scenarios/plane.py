"""Requests of `pressure` over the plane of memory, popularity and clients: where trims pays, and how much."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from trims_bench.figures import Bar, Comparison, Figure, Samples
from trims_bench.scenarios.pressure import zoo, zoo_daemon
from trims_bench.zoo import Load, clients, drop_pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims_bench.scenarios.base import Setup
    from trims_bench.zoo import Clients, Model

TITLE = "load, run once, drop: requests served, over transformers' from_pretrained, by room, popularity and clients"
ROOMS = (0.1, 0.25, 0.4, 0.7, 1.2)
ZIPFS = (0.0, 1.0, 1.4)
CLIENTS = (1, 4, 8)
#: Number of clients at which cells with a dropped page cache are measured.
_CLIENTS_COLD = 4
_SECONDS = 4.0
_BAR = Bar(">=", 1.0)
_NOTE = (
    "Models and requests as in `pressure`. Room: shared memory, as a share of the weights of all 12 models. Zipf: "
    "model number n is asked for as often as 1 / n ** s. Each cell is one turn of 4 s of each side, after one of 1 s; "
    "cold: the pages of all files were dropped from the page cache before each of them."
)


def run(setup: Setup) -> Figure:
    """One daemon for each room; the same processes for all cells."""
    figure = Figure("plane", TITLE, [], [_NOTE])
    with setup.scratch() as folder:
        models, shape = zoo(setup, folder)
        for room in ROOMS[:1] if setup.quick else ROOMS:
            with zoo_daemon(setup, folder, models, shape, room) as daemon:
                figure.comparisons += _cells(setup, folder, models, daemon.runtime_dir, room)
    return figure


def _cells(setup: Setup, folder: Path, models: list[Model], runtime_dir: Path, room: float) -> Iterator[Comparison]:
    most = 1 if setup.quick else max(CLIENTS)
    with (
        clients("trims", models, most, runtime_dir) as ours,
        clients("transformers", models, most, runtime_dir) as alone,
    ):
        for zipf, count, cold in product(ZIPFS, CLIENTS, (False, True)):
            if count > most or (cold and count != _CLIENTS_COLD):
                continue
            title = f"room {room:.0%}, Zipf {zipf:.1f}, {count} {'client' if count == 1 else 'clients'}"
            sides = [
                Samples(of, _turn(setup, side, Load(zipf, count, _SECONDS), folder if cold else None))
                for of, side in (("trims", ours), ("from_pretrained", alone))
            ]
            value = len(sides[0].values) / len(sides[1].values)
            yield Comparison(f"{title}{', cold' if cold else ''}", value, "x", _BAR, sides)


def _turn(setup: Setup, side: Clients, load: Load, dropped: Path | None) -> list[int]:
    if dropped is not None:
        drop_pages(dropped)
    else:
        side.take(Load(load.zipf, load.clients, 0.1 if setup.quick else 1.0))
    return side.take(Load(load.zipf, load.clients, 0.2 if setup.quick else load.seconds))
