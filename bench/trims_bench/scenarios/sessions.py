"""Many sessions of one daemon: 200 that open and close at random, and a crowd that comes at once."""

from __future__ import annotations

import os
import random
import selectors
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from trims.wire.address import ATTACH_SOCKET
from trims_bench.checkpoints import write_checkpoint
from trims_bench.child import call, started
from trims_bench.measuring import Bar, Comparison, Figure, Samples
from trims_bench.raw import HELLO, RawClient
from trims_bench.scenarios import Part
from trims_bench.scenarios.base import MEMORIES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims_client import Session

    from trims.wire.frames import Message
    from trims_bench.child import Started
    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup


# Many clients of one process that come at once: `trims_bench.child`.

#: A client that has no answer by then counts as not answered.
_WAIT_S = 10.0


def visit(runtime_dir: str, model: str, clients: int, at_ns: int) -> Iterator[dict[str, Any]]:
    """Connect at a moment and have each client open the model once; those that are served stay until the end.

    Args:
        model: Resident there.
        at_ns: When, on the monotonic clock, which all processes share.

    Yields:
        Nanoseconds of those that were served and of those that were refused for want of capacity, by `served` and
        `refused`; under `others` what came of the rest. Then, at the end, nothing.
    """
    time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
    with ExitStack() as stack:
        crowd = _Crowd()
        for _ in range(clients):
            crowd.add(stack, os.path.join(runtime_dir, ATTACH_SOCKET), model)
            crowd.hear(0)
        until_s = time.monotonic() + _WAIT_S
        while crowd.waiting and time.monotonic() < until_s:
            crowd.hear(0.1)
        yield {**crowd.found, "others": crowd.others + ["no answer"] * crowd.waiting}
    yield {}


class _Crowd:
    """Crowd of clients, and what became of them."""

    def __init__(self) -> None:
        self._poll = selectors.DefaultSelector()
        self.waiting = 0
        self.found: dict[str, list[int]] = {"served": [], "refused": []}
        self.others: list[str] = []

    def add(self, stack: ExitStack, path: str, model: str) -> None:
        """One client more."""
        began = time.monotonic_ns()
        client = stack.enter_context(RawClient(path))
        client.send(HELLO, {"op": "open", "id": 1, "model": model})
        self._poll.register(client.sock, selectors.EVENT_READ, (client, began))
        self.waiting += 1

    def hear(self, wait_s: float) -> None:
        """Take in the daemon's answers that are there, or that come within this time in seconds."""
        for key, _ in self._poll.select(wait_s):
            client, began = key.data
            try:
                messages = client.receive()
            except OSError as error:
                self._over(client, str(error))
                continue
            for message in messages:
                self._count(client, message, time.monotonic_ns() - began)

    def _count(self, client: RawClient, message: Message, taken_ns: int) -> None:
        if "lease" in message:
            self.found["served"].append(taken_ns)
            self._over(client)
        elif "error" in message:
            code = message["error"]["code"]
            if code == "capacity":
                self.found["refused"].append(taken_ns)
            self._over(client, "" if code == "capacity" else code)

    def _over(self, client: RawClient, what: str = "") -> None:
        self._poll.unregister(client.sock)
        self.waiting -= 1
        if what:
            self.others.append(what)


_CHURN = "200 sessions open and close at random, with room for a third of the models"
_CROWD = "2,000 clients come at once to a daemon that may open 1,024 files, and open a model that is resident"
_PROCESSES = 4
_HOLD_S, _DEADLINE_S = 0.02, 2.0
_MODEL = "crowded"
#: Nanoseconds until all processes of clients have started.
_AHEAD_NS = 2_000_000_000
_IDLE_S = 1.0


# -- open and close at random --------------------------------------------------------------------------------------


def churn(setup: Setup) -> Figure:
    """Sessions in a few processes, one thread each; then the daemon's books must be in order."""
    figure = Figure("churn", _CHURN, [], [])
    for where, large_pages in MEMORIES.items():
        found = _churned(setup, large_pages=large_pages)
        warm, cold = (Samples(f"{kind} opens", found[kind]) for kind in ("warm", "cold"))
        bar = Bar("<=", 5.0) if large_pages else None
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


def _churned(setup: Setup, *, large_pages: bool) -> dict[str, Any]:
    models, sessions, opens = setup.size(30, 6), setup.size(200, 8), setup.repeat or setup.size(40, 5)
    sizes = _sizes(models, setup.size(1 << 20, 1 << 16))
    with (
        setup.scratch() as folder,
        setup.daemon(folder / "state", cpu_capacity_bytes=sum(sizes) // 3, large_pages=large_pages) as daemon,
    ):
        names = [_added(daemon, folder, number, nbytes) for number, nbytes in enumerate(sizes)]
        found = _in_processes(daemon, names, sessions, opens, think_s=setup.size(600, 10) / 1e3)
        _check(daemon)
    return found


def _sizes(models: int, unit: int) -> list[int]:
    """1 to 8 units each."""
    return [unit * (1 + number % 8) for number in range(models)]


def _added(daemon: DaemonProcess, folder: Path, number: int, nbytes: int) -> str:
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
        parts = list(pool.map(lambda seed: call(visit_all, {**given, "seed": seed}), range(_PROCESSES)))
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


def visit_all(
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


# -- a crowd -------------------------------------------------------------------------------------------------------


def crowd(setup: Setup) -> Figure:
    """One crowd for each repeat, each with a daemon of its own."""
    found: dict[str, list[Any]] = {"served": [], "refused": [], "others": [], "idle": [], "before": [], "log": []}
    clients = setup.size(2000, 60) // _PROCESSES * _PROCESSES
    repeats = setup.repeats(3)
    for _ in range(repeats):
        for what, values in _crowded(setup, clients).items():
            found[what] += values
    figure = Figure("crowd", _CROWD, _compared(found, clients * repeats), [])
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
        Comparison("longest until then", longest / 1e6, "ms", Bar("<=", 1000.0), answers),
        Comparison("processor in an idle second", max(idle[0].values) / 1e6, "ms", Bar("<=", 50.0), idle),
        Comparison("log of the crowd", max(log.values), "bytes", None, (log,)),
    ]


def _crowded(setup: Setup, clients: int) -> dict[str, list[Any]]:
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


PARTS = {"churn": Part(_CHURN, churn), "crowd": Part(_CROWD, crowd)}
