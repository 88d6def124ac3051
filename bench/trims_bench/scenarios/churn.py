"""Many sessions opening and closing at random while there is room for a third of the models."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from trims_bench.checkpoints import write_checkpoint
from trims_bench.child import call
from trims_bench.figures import Bar, Comparison, Figure, Samples
from trims_bench.scenarios.base import MEMORIES

if TYPE_CHECKING:
    from pathlib import Path

    from trims_client import Session

    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup

TITLE = "200 sessions open and close at random, with room for a third of the models"
_BAR_MS = 5.0
_PROCESSES = 4
_HOLD_S = 0.02
_DEADLINE_S = 2.0


def run(setup: Setup) -> Figure:
    """Sessions in a few processes, one thread each; then the daemon's books must be in order."""
    figure = Figure("churn", TITLE, [], [])
    for where, large_pages in MEMORIES.items():
        found = _churn(setup, large_pages)
        warm, cold = (Samples(f"{kind} opens", found[kind]) for kind in ("warm", "cold"))
        bar = Bar("<=", _BAR_MS) if large_pages else None
        p99_ms = warm.percentile(0.99) / 1e6
        figure.comparisons.append(Comparison(f"{where}p99 of warm opens", p99_ms, "ms", bar, (warm, cold)))
        declared = ", ".join(f"{count} {name}" for name, count in sorted(found["declared"].items())) or "none"
        figure.notes.append(
            f"{where or 'large pages, '}"
            f"{len(warm.values)} warm and {len(cold.values)} cold opens in {found['seconds']:.0f} s; declared "
            f"errors: {declared}; any other would have ended the run."
        )
    figure.notes.append(
        "Sessions think 0.3 to 0.9 s, hold a model up to 20 ms, and prefer some models to others (1 / rank)."
    )
    return figure


def _churn(setup: Setup, large_pages: bool) -> dict[str, Any]:
    models, sessions, opens = setup.size(30, 6), setup.size(200, 8), setup.repeat or setup.size(40, 5)
    sizes = _sizes(models, setup.size(1 << 20, 1 << 16))
    with (
        setup.scratch() as folder,
        setup.daemon(folder / "state", cpu_capacity_bytes=sum(sizes) // 3, large_pages=large_pages) as daemon,
    ):
        names = [_add(daemon, folder, number, nbytes) for number, nbytes in enumerate(sizes)]
        found = _in_processes(daemon, names, sessions, opens, think_s=setup.size(600, 10) / 1e3)
        _check(daemon)
    return found


def _sizes(models: int, unit: int) -> list[int]:
    """1 to 8 units each."""
    return [unit * (1 + number % 8) for number in range(models)]


def _add(daemon: DaemonProcess, folder: Path, number: int, nbytes: int) -> str:
    name = f"churn-{number}"
    path = write_checkpoint(folder / f"{name}.safetensors", nbytes, label=name)
    return daemon.add({"name": name, "artifact": {"path": str(path)}})


def _in_processes(
    daemon: DaemonProcess, names: list[str], sessions: int, opens: int, *, think_s: float
) -> dict[str, Any]:
    given = {
        "runtime_dir": str(daemon.runtime_dir),
        "names": names,
        "sessions": sessions // _PROCESSES,
        "opens": opens,
        "think_s": think_s,
    }
    began = time.monotonic()
    with ThreadPoolExecutor(_PROCESSES) as pool:
        parts = list(pool.map(lambda seed: call(measure, {**given, "seed": seed}), range(_PROCESSES)))
    declared: Counter[str] = Counter()
    for part in parts:
        declared.update(part["declared"])
    joined = {kind: [taken for part in parts for taken in part[kind]] for kind in ("warm", "cold")}
    return {**joined, "declared": declared, "seconds": time.monotonic() - began}


def _check(daemon: DaemonProcess) -> None:
    """Check, once all sessions are gone, that their leases are too, and that the books agree with the facts."""
    with daemon.door() as door:
        while door.status().stats.sessions:
            time.sleep(0.01)
        leases, findings = door.status().stats.leases, door.check(verify=True).findings
    assert leases == 0, f"{leases} leases without a session"
    assert not findings, findings


def measure(
    *, runtime_dir: str, names: list[str], sessions: int, opens: int, think_s: float, seed: int
) -> dict[str, Any]:
    """One process with several sessions, each in a thread; nanoseconds of opens, and how often what was refused."""
    import trims

    visitors = [_Visitor(names, opens, think_s, seed=seed * 1000 + number) for number in range(sessions)]
    threads = []
    connections = [trims.connect(runtime_dir) for _ in visitors]
    for visitor, session in zip(visitors, connections, strict=True):
        threads.append(threading.Thread(target=visitor.visit, args=(session,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in connections:
        session.close()
    if failed := [visitor.failure for visitor in visitors if visitor.failure is not None]:
        raise failed[0]
    return {
        "warm": [taken for visitor in visitors for taken in visitor.taken[True]],
        "cold": [taken for visitor in visitors for taken in visitor.taken[False]],
        "declared": sum((visitor.declared for visitor in visitors), Counter()),
    }


class _Visitor:
    """One session's life.

    Attributes:
        taken: Nanoseconds of opens that were granted, by whether they were warm.
        declared: Refusals that a caller has to expect, by class.
        failure: Anything else.
    """

    def __init__(self, names: list[str], opens: int, think_s: float, *, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a load, not a secret
        self._names = names
        self._likely = [1 / rank for rank in range(1, len(names) + 1)]
        self._opens = opens
        self._think_s = think_s
        self.taken: dict[bool, list[int]] = {True: [], False: []}
        self.declared: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def visit(self, session: Session) -> None:
        """Open, hold, close, think."""
        try:
            for _ in range(self._opens):
                time.sleep(self._think_s * self._random.uniform(0.5, 1.5))
                self._open(session)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that joins
            self.failure = error

    def _open(self, session: Session) -> None:
        from trims.core.errors import CapacityError, DeadlineError

        name = self._random.choices(self._names, self._likely)[0]
        began = time.perf_counter_ns()
        try:
            weights = session.open(name, place="cpu", deadline_s=_DEADLINE_S)
        except (CapacityError, DeadlineError) as error:
            self.declared[type(error).__name__] += 1
            return
        self.taken[weights.warm].append(time.perf_counter_ns() - began)
        with weights:
            assert weights.metadata["label"] == name, f"asked for {name}, got {weights.metadata['label']}"
            time.sleep(_HOLD_S * self._random.random())
