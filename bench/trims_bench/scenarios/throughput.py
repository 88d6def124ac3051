"""Requests of a small model per second: the endpoint beside inference servers of other projects."""

from __future__ import annotations

import json
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

from trims_bench.child import call
from trims_bench.endpoint import EndpointProcess
from trims_bench.figures import Bar, Comparison, Figure, Samples, share
from trims_bench.http_load import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.endpoint import Inputs
    from trims_bench.others.serving import Other
    from trims_bench.scenarios.base import Setup

TITLE = "requests of a small model per second over 16 connections, against the better of LitServe and MLServer"
_NAME = "dense"
_WIDTH = 64
_CONNECTIONS = 16
_SECONDS = 5.0
_OURS = "trims"
_NOTE = (
    "Two dense layers, 64 numbers in and 10 out, in JSON; each server has one worker process with one thread and one "
    "process for HTTP, and puts no requests together. The same load for all: 16 connections of aiohttp that are kept "
    "and ask again at once, the Open Inference Protocol for ours and MLServer, its own `/predict` for LitServe. The "
    "servers take turns of 5 s, and only the one that is asked runs."
)


def run(setup: Setup) -> Figure:
    """Turns of all servers that are to be had."""
    from trims_bench.small import manifest, write_weights

    with setup.scratch() as folder, setup.daemon() as daemon:
        weights = write_weights(folder / "small.npz")
        daemon.load(daemon.register(manifest(_NAME, weights, "dense", [-1, _WIDTH], instances=1)))
        turns = _Turns(setup, folder, weights, daemon)
        turns.take(setup.repeats(5))
    return Figure("throughput", TITLE, [*_compared(turns.found)], [_NOTE, *turns.notes])


def _compared(found: dict[str, list[dict[str, Any]]]) -> Iterator[Comparison]:
    ours = _rates(_OURS, found[_OURS])
    others = [_rates(name, turns) for name, turns in found.items() if name != _OURS]
    answered, failed = (sum(turn[what] for turn in found[_OURS]) for what in ("answered", "failed"))
    if others:
        best = max(others, key=lambda each: each.median)
        yield share(f"requests per second, times the better other ({best.of})", ours, best, Bar(">=", 1.0))
    else:
        yield Comparison("requests per second, no other server", ours.median, "requests", None, (ours,))
    for other in others:
        yield share(f"requests per second, times {other.of}", ours, other, None)
    counts = Samples("answered", [turn["answered"] for turn in found[_OURS]], "requests")
    yield Comparison("answered right, of all", answered / (answered + failed), "x", Bar(">=", 1.0), (counts,))


def _rates(name: str, turns: list[dict[str, Any]]) -> Samples:
    return Samples(name, [turn["per_second"] for turn in turns], "requests")


class _Turns:
    """Turns of the servers, one after the other.

    Attributes:
        found: Name of a server -> what each turn has counted.
        notes: Servers that could not be measured, and why; requests that failed.
    """

    def __init__(self, setup: Setup, folder: Path, weights: Path, daemon: DaemonProcess) -> None:
        from trims_bench.repository import clients_python

        self._setup = setup
        self._folder = folder
        self._weights = weights
        self._daemon = daemon
        self._python = clients_python()
        self._numbers = [number / _WIDTH for number in range(_WIDTH)]
        self._expected = _expected(weights, self._numbers)
        self.found: dict[str, list[dict[str, Any]]] = {}
        self.notes: list[str] = []

    def take(self, count: int) -> None:
        """Take so many turns."""
        ways: dict[str, Callable[[], dict[str, Any]]] = {_OURS: self._ours}
        ways |= {other.name: partial(self._other, other, python) for other, python in self._others()}
        for _ in range(count):
            for name in list(ways):
                self._take(name, ways)
        for name, turns in self.found.items():
            if failed := sum(turn["failed"] for turn in turns):
                why = next(turn["why"] for turn in turns if turn["failed"])
                self.notes.append(f"{failed} requests to {name} failed, the first: {why}.")

    def _take(self, name: str, ways: dict[str, Callable[[], dict[str, Any]]]) -> None:
        """One turn of one server; one that does not serve is left out, with what it had found."""
        from trims_bench.others.serving import OtherMissingError

        try:
            self.found.setdefault(name, []).append(ways[name]())
        except OtherMissingError as error:
            del ways[name]
            del self.found[name]
            self.notes.append(f"{name} was not measured: {error}.")

    def _others(self) -> Sequence[tuple[Other, Path]]:
        """Servers and the Python that has each; they are not installed for a quick run."""
        from trims_bench.others.serving import LITSERVE, MLSERVER, OtherMissingError, install

        had = []
        for other in (LITSERVE, MLSERVER):
            if self._setup.quick:
                self.notes.append(f"{other.name} was not measured: a quick run installs nothing.")
                continue
            try:
                had.append((other, install(other, self._setup.work / "others" / other.name)))
                self.notes.append(f"{' and '.join(other.requirements)} in an environment of its own.")
            except OtherMissingError as error:
                self.notes.append(f"{other.name} was not measured: {error}.")
        return had

    def _ours(self) -> dict[str, Any]:
        given: Inputs = {"x": ("FP32", (1, _WIDTH), struct.pack(f"<{_WIDTH}f", *self._numbers))}
        with EndpointProcess(self._daemon.runtime_dir, "--hot-spares", "0") as endpoint:
            endpoint.infer(_NAME, given)
            return self._asked(f"http://127.0.0.1:{endpoint.port}/v2/models/{_NAME}/infer", speaks_v2=True)

    def _other(self, other: Other, python: Path) -> dict[str, Any]:
        from trims_bench.others.serving import serving

        with serving(other, python, self._folder / other.name, self._weights) as url:
            return self._asked(url, speaks_v2=other.speaks_v2)

    def _asked(self, url: str, *, speaks_v2: bool) -> dict[str, Any]:
        from trims_bench.repository import packages_path
        from trims_bench.runs import environment

        tensor = {"name": "x", "datatype": "FP32", "shape": [1, _WIDTH], "data": self._numbers}
        given = {
            "url": url,
            "body": json.dumps({"inputs": [tensor]} if speaks_v2 else {"x": [self._numbers]}),
            "connections": _CONNECTIONS,
            "seconds": 0.5 if self._setup.quick else _SECONDS,
            "expected": self._expected,
            "speaks_v2": speaks_v2,
        }
        env = {**environment(), "PYTHONPATH": packages_path()}
        found: dict[str, Any] = call(ask, given, python=self._python, env=env)
        return found


def _expected(weights: Path, numbers: list[float]) -> list[float]:
    """The right answer."""
    import numpy as np

    from trims_bench.small import dense

    with np.load(weights) as file:
        arrays = {name: file[name] for name in file.files}
    found: list[float] = dense(arrays, {"x": np.asarray([numbers], dtype=np.float32)})["y"][0].tolist()
    return found
