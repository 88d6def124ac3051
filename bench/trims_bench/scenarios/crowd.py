"""Crowd of more clients than a daemon has descriptors for: each is served or refused soon, and then there is quiet."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from trims_bench.checkpoints import write_checkpoint
from trims_bench.figures import Bar, Comparison, Figure, Samples

if TYPE_CHECKING:
    from trims_bench.child import Started
    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup

TITLE = "2,000 clients come at once to a daemon that may open 1,024 files, and open a model that is resident"
_BAR_ANSWER_MS = 1000.0
_BAR_IDLE_MS = 50.0
_MODEL = "crowded"
_PROCESSES = 4
#: Nanoseconds until all processes of clients have started.
_AHEAD_NS = 2_000_000_000
_IDLE_S = 1.0


def run(setup: Setup) -> Figure:
    """One crowd for each repeat, each with a daemon of its own."""
    found: dict[str, list[Any]] = {"served": [], "refused": [], "others": [], "idle": [], "before": [], "log": []}
    clients = setup.size(2000, 60) // _PROCESSES * _PROCESSES
    repeats = setup.repeats(3)
    for _ in range(repeats):
        for what, values in _crowd(setup, clients).items():
            found[what] += values
    figure = Figure("crowd", TITLE, _compared(found, clients * repeats), [])
    others = {what: found["others"].count(what) for what in sorted(set(found["others"]))}
    figure.notes.append(
        f"{repeats} times {clients} clients: {len(found['served'])} were served and stayed, {len(found['refused'])} "
        f"were refused with `capacity`; anything else: {others or 'none'}. Each is timed from its connect."
    )
    figure.notes.append(
        "Idle: processor time of the daemon in the second after the last answer, with the served clients connected "
        "(other side: in a second before the crowd); the worst. The log is at level info."
    )
    return figure


def _compared(found: dict[str, list[Any]], clients: int) -> list[Comparison]:
    answers = [Samples(what, found[what]) for what in ("served", "refused") if found[what]]
    answered = sum(len(side.values) for side in answers)
    longest = max((max(side.values) for side in answers), default=0)
    idle = Samples("idle second after", found["idle"]), Samples("idle second before", found["before"])
    log = Samples("log", found["log"], "bytes")
    counts = [Samples(side.of, [len(side.values)], "clients") for side in answers]
    return [
        Comparison("served (other side: refused), of all", answered / clients, "x", Bar(">=", 1.0), counts),
        Comparison("longest until then", longest / 1e6, "ms", Bar("<=", _BAR_ANSWER_MS), answers),
        Comparison("processor in an idle second", max(idle[0].values) / 1e6, "ms", Bar("<=", _BAR_IDLE_MS), idle),
        Comparison("log of the crowd", max(log.values), "bytes", None, (log,)),
    ]


def _crowd(setup: Setup, clients: int) -> dict[str, list[Any]]:
    files = setup.size(1024, 256)
    program = ["trims_bench.altered", "--files", str(files), "--"]
    with (
        setup.scratch() as folder,
        setup.daemon(folder / "state", program=program, cpu_capacity_bytes=1 << 20, log_level="info") as daemon,
    ):
        path = write_checkpoint(folder / "model.safetensors", 64_000)
        daemon.load(daemon.register({"name": _MODEL, "artifact": {"path": str(path)}}))
        before, log_bytes = _idle(daemon), daemon.log_bytes
        with ExitStack() as stack:
            parts = _visited(stack, daemon, clients)
            idle = _idle(daemon)
            log_bytes = daemon.log_bytes - log_bytes
    found = {what: [each for part in parts for each in part[what]] for what in ("served", "refused", "others")}
    return {**found, "idle": [idle], "before": [before], "log": [log_bytes]}


def _visited(stack: ExitStack, daemon: DaemonProcess, clients: int) -> list[dict[str, Any]]:
    """Processes full of clients, which stay until the stack ends; what became of the clients."""
    from trims_bench.child import started
    from trims_bench.crowd import visit

    given = {"runtime_dir": str(daemon.runtime_dir), "model": _MODEL, "clients": clients // _PROCESSES}
    given["at_ns"] = time.monotonic_ns() + _AHEAD_NS
    processes: list[Started] = [stack.enter_context(started(visit, given)) for _ in range(_PROCESSES)]
    with ThreadPoolExecutor(_PROCESSES) as pool:
        return list(pool.map(lambda process: process.result(), processes))


def _idle(daemon: DaemonProcess) -> int:
    """Nanoseconds of processor time in a second in which nothing is asked."""
    before = daemon.cpu_ns
    time.sleep(_IDLE_S)
    return daemon.cpu_ns - before
