"""Warm opens of one client while the daemon is busy with something else: the worst of a thousand."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

from trims_bench.child import call
from trims_bench.measuring import Bar, Comparison, Figure, Samples
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path

    from trims_bench.disturbances import Disturbance, Rig
    from trims_bench.scenarios.base import Setup

_TITLE = "warm opens and closes of a small model, p99.9, while the daemon is busy with something else"
_BAR = Bar("<=", 10.0)
_MODEL = "measured"
_MODEL_BYTES = 64_000
_WARM_UP = 20


def door(setup: Setup) -> Figure:
    """One disturbance after the other, each with a daemon of its own; first none."""
    from trims_bench.disturbances import DISTURBANCES

    figure = Figure("door", _TITLE, [], [])
    with setup.scratch() as folder:
        for disturbance in DISTURBANCES:
            _disturbed(figure, disturbance, setup, folder)
    figure.notes.append(
        "A client sleeps 1 ms, opens and closes, at least 5,000 times and for 10 s. Trims: the median. Other side, and "
        "sleep: by how much the client's own sleeps were too long, which is the machine's part and not the daemon's: "
        "what disturbs needs processors, too. So is the time within an open in which the client was ready to run and "
        "had no processor (the kernel counts it), which is taken off in the third figure."
    )
    return figure


def _disturbed(figure: Figure, disturbance: Disturbance, setup: Setup, folder: Path) -> None:
    from trims_bench.disturbances import Rig, Sizes, slow_file

    sizes = Sizes.of(setup)
    program = ["trims_bench.altered", "--slow-file", str(slow_file(folder)), "--slow-s", str(sizes.look_s), "--"]
    room = disturbance.room(sizes) + 8 * _MODEL_BYTES
    with setup.daemon(folder / "state", program=program, cpu_capacity_bytes=room) as daemon:
        rig = Rig(daemon, folder, sizes)
        taken, late, waited = _measured(setup, rig, disturbance)
    opens, wakes = Samples("open and close", taken), Samples("the client's own sleep, beyond 1 ms", late)
    without = Samples("open and close, less what the client waited for a processor", _less(taken, waited))
    p99_ms, p999_ms, most_ms = opens.percentile(0.99) / 1e6, opens.percentile(0.999) / 1e6, max(taken) / 1e6
    figure.comparisons.append(Comparison(f"{disturbance.what}: p99.9", p999_ms, "ms", _BAR, (opens, wakes, without)))
    figure.notes.append(
        f"{disturbance.what}: p50 {opens.median / 1e6:.2f}, p99 {p99_ms:.2f}, p99.9 {p999_ms:.2f}, longest "
        f"{most_ms:.2f} ms of {len(taken):,}; p99.9 less the client's own waits for a processor "
        f"{without.percentile(0.999) / 1e6:.2f} (sleep p99.9 {wakes.percentile(0.999) / 1e6:.2f}, longest "
        f"{max(late) / 1e6:.2f} ms); beside them {', '.join(rig.did)}."
    )


def _measured(setup: Setup, rig: Rig, disturbance: Disturbance) -> tuple[list[int], list[int], list[int]]:
    """The measured model is pinned: nothing that disturbs may evict it."""
    rig.resident(_MODEL, _MODEL_BYTES)
    with rig.daemon.door() as door:
        door.pin(_MODEL)
    given = {"runtime_dir": str(rig.daemon.runtime_dir), "model": _MODEL}
    with disturbance.begin(rig):
        timed = {"count": setup.repeats(5000), "seconds": setup.size(10_000, 300) / 1e3, "pause_s": 1e-3}
        taken, late, waited = call(watch, {**given, **timed})
    return taken, late, waited


def _less(taken: list[int], waited: list[int]) -> list[int]:
    return [max(1, whole - part) for whole, part in zip(taken, waited, strict=True)]


def watch(
    runtime_dir: str, model: str, count: int, seconds: float, pause_s: float
) -> tuple[list[int], list[int], list[int]]:
    """Open and close at least `count` times and for `seconds`.

    Returns nanoseconds: of each open with its close; of each sleep beyond its time; and how long, within each open and
    close, this thread was ready to run and had no processor.
    """
    import trims

    taken: list[int] = []
    late: list[int] = []
    waited: list[int] = []
    with trims.connect(runtime_dir) as session, open("/proc/thread-self/schedstat", "rb", buffering=0) as own:
        for _ in range(_WARM_UP):
            session.open(model).close()
        gc.collect()
        gc.freeze()
        until_s = time.monotonic() + seconds
        while len(taken) < count or time.monotonic() < until_s:
            slept = time.perf_counter_ns()
            time.sleep(pause_s)
            waited_ns = _waited_ns(own)
            began = time.perf_counter_ns()
            weights = session.open(model)
            weights.close()
            taken.append(time.perf_counter_ns() - began)
            waited.append(_waited_ns(own) - waited_ns)
            late.append(began - slept - int(pause_s * 1e9))
            assert weights.warm, "it is pinned"
    return taken, late, waited


def _waited_ns(own: FileIO) -> int:
    """Return how long this thread has been ready to run without a processor, since it began (Linux, schedstat)."""
    own.seek(0)
    return int(own.read().split()[1])


PARTS = {"door": Part(_TITLE, door)}
