"""Requests beside work behind readers: 5 GB are hashed and copied to memory that no request waits for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trims_bench.checkpoints import write_checkpoint
from trims_bench.child import call
from trims_bench.measuring import Bar, Comparison, Figure, Samples
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup

_TITLE = "warm opens and a computation, p99, while 5 GB are hashed and copied to memory behind their readers"
_BAR = Bar("<=", 1.1)
_MODEL, _MODEL_BYTES = "measured", 64_000
_FILES = 5
#: One open of each file, and again after this time, until all are in memory.
_AGAIN_S = 0.5


def behind(setup: Setup) -> Figure:
    """Turns of a daemon that has nothing to do, and of the same one at work."""
    idle: list[list[int]] = [[], []]
    busy: list[list[int]] = [[], []]
    took: list[float] = []
    nbytes = setup.size(1_000_000_000, 4_000_000)
    with setup.scratch() as folder:
        paths = [
            write_checkpoint(folder / f"{number}.safetensors", nbytes, tensors=16, label=str(number))
            for number in range(_FILES)
        ]
        for turn in range(setup.repeats(3)):
            with setup.daemon(folder / f"state-{turn}", cpu_capacity_bytes=2 * _FILES * nbytes) as daemon:
                took.append(_turn(setup, daemon, folder, paths, (idle, busy)))
    compared = []
    for number, what in enumerate(("open and close", "computation")):
        ours, theirs = Samples(f"{what}, at work", busy[number]), Samples(f"{what}, idle", idle[number])
        for share, bar in ((0.5, None), (0.99, _BAR)):
            ratio = ours.percentile(share) / theirs.percentile(share)
            compared.append(Comparison(f"{what}: p{share * 100:g}, times idle", ratio, "x", bar, (ours, theirs)))
    return Figure("behind", _TITLE, compared, [_note(idle, busy, took)])


def _note(idle: Sequence[Sequence[int]], busy: Sequence[Sequence[int]], took: Sequence[float]) -> str:
    told = []
    for side, values_of in (("idle", idle), ("at work", busy)):
        for what, values in zip(("open and close", "computation"), values_of, strict=True):
            found = Samples(what, values)
            p50_ms, p99_ms = found.median / 1e6, found.percentile(0.99) / 1e6
            told.append(f"{what}, {side}: p50 {p50_ms:.2f}, p99 {p99_ms:.2f} ms")
    return f"{'; '.join(told)}. The work took {', '.join(f'{each:.0f}' for each in took)} s in the turns."


def _turn(
    setup: Setup, daemon: DaemonProcess, folder: Path, paths: Sequence[Path], samples: tuple[list[list[int]], ...]
) -> float:
    """Work until all files are in memory, then be idle. Return the seconds of the work.

    The same readers open the same files all the time, so that the work is the only difference.
    """
    from trims_bench.beside import Beside

    path = write_checkpoint(folder / "measured.safetensors", _MODEL_BYTES)
    daemon.register({"name": _MODEL, "artifact": {"path": str(path)}})
    daemon.load(_MODEL, place="cpu")
    with daemon.door() as door:
        door.pin(_MODEL)
    idle, busy = samples
    given = {"runtime_dir": str(daemon.runtime_dir), "model": _MODEL}
    readers = _Readers(daemon.runtime_dir, paths)
    with Beside(readers.read):
        while not readers.seconds:
            _add(busy, call(watch, {**given, "seconds": setup.size(5_000, 200) / 1e3}))
        _add(idle, call(watch, {**given, "seconds": setup.size(20_000, 200) / 1e3}))
    return readers.seconds


def _add(side: list[list[int]], found: Sequence[Sequence[int]]) -> None:
    for values, more in zip(side, found, strict=True):
        values.extend(more)


class _Readers:
    """Opens of files: use brings each to memory.

    Attributes:
        seconds: How long that took; 0 until it is done. The opens go on.
    """

    def __init__(self, runtime_dir: Path, paths: Sequence[Path]) -> None:
        self._runtime_dir = runtime_dir
        self._paths = paths
        self._began_s = time.monotonic()
        self.seconds = 0.0

    def read(self, stopping: threading.Event) -> None:
        """One round: open each file and look where its weights lie."""
        import trims

        with trims.connect(self._runtime_dir) as session:
            places = []
            for path in self._paths:
                with session.open_file(path) as weights:
                    places.append(weights.place)
        if set(places) == {"cpu"} and not self.seconds:
            self.seconds = time.monotonic() - self._began_s
        stopping.wait(_AGAIN_S)


def watch(runtime_dir: str, model: str, seconds: float) -> tuple[list[int], list[int]]:
    """Open and close, and compute some milliseconds, for so long, with pauses of 1 ms.

    Returns nanoseconds: of each open with its close, and of each computation.
    """
    import gc

    import numpy as np

    import trims

    opens: list[int] = []
    computations: list[int] = []
    matrix = np.random.default_rng(7).random((384, 384), dtype=np.float32)
    with trims.connect(runtime_dir) as session:
        for _ in range(20):
            session.open(model).close()
            matrix @ matrix
        gc.collect()
        gc.freeze()
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s or not opens:
            time.sleep(1e-3)
            began = time.perf_counter_ns()
            session.open(model).close()
            opened = time.perf_counter_ns()
            matrix @ matrix
            computations.append(time.perf_counter_ns() - opened)
            opens.append(opened - began)
    return opens, computations


PARTS = {"behind": Part(_TITLE, behind)}
