"""Disturbances of a daemon while its warm opens are measured, each for the length of a `with` block."""

from __future__ import annotations

import itertools
import os
import sqlite3
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.units import format_seconds
from trims.wire.address import ATTACH_SOCKET
from trims_bench.altered import slow_mark
from trims_bench.beside import Beside
from trims_bench.checkpoints import write_checkpoint
from trims_bench.child import started
from trims_bench.raw import HELLO, RawClient

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from trims.control import Admin
    from trims.wire.frames import Message
    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup


# A client that sends opens and closes of a model without pause, in a process of its own: `trims_bench.child`.

#: Opens that are on their way at any time; a session that leaves 256 answers unread is ended.
_ON_THEIR_WAY = 64


def flood(runtime_dir: str, model: str) -> Iterator[int]:
    """Yields 0 once the flood has begun, and at its end how many opens were answered."""
    answered: list[int] = []
    with RawClient(os.path.join(runtime_dir, ATTACH_SOCKET)) as client:
        flooding = _Flood(client, model)
        with Beside(lambda _: answered.append(flooding.answer())):
            yield 0
    yield sum(answered)


class _Flood:
    def __init__(self, client: RawClient, model: str) -> None:
        self._client = client
        self._open: Message = {"op": "open", "model": model}
        self._number = 0
        client.send(HELLO, *(self._next() for _ in range(_ON_THEIR_WAY)))

    def _next(self) -> Message:
        self._number += 1
        return {**self._open, "id": self._number}

    def answer(self) -> int:
        """Send a close for each answer that has come, and the next open; return how many answers came."""
        granted = [message for message in self._client.receive() if message.get("id") is not None]
        more: list[Message] = []
        for message in granted:
            assert "lease" in message, message
            more += [{"op": "close", "lease": message["lease"]}, self._next()]
        self._client.send(*more)
        return len(granted)


_FLOODING_CLIENTS = 8
#: The small models that are evicted for each other, and how many of them fit.
_SMALL, _FIT = 6, 3
_COLD_PAUSE_S = 0.05
#: Seconds between two times that the catalog is locked.
_UNLOCKED_S = 0.2


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the disturbances; a quick run has tiny ones."""

    load_bytes: int
    small_bytes: int
    tensors: int
    look_s: float
    look_pause_s: float
    lock_s: float

    @classmethod
    def of(cls, setup: Setup) -> Sizes:
        """Return the sizes of the figure, or those of a quick run."""
        return cls(
            load_bytes=setup.size(2_000_000_000, 4_000_000),
            small_bytes=setup.size(8_000_000, 1_000_000),
            tensors=setup.size(100_000, 1_000),
            look_s=setup.size(3000, 100) / 1e3,
            look_pause_s=setup.size(600, 20) / 1e3,
            lock_s=setup.size(5000, 100) / 1e3,
        )


@dataclass(slots=True)
class Rig:
    """Daemon, folder and sizes that a disturbance works with.

    Attributes:
        did: Work done, reported at its end; the proof that it disturbed.
    """

    daemon: DaemonProcess
    folder: Path
    sizes: Sizes
    did: list[str] = field(default_factory=list)

    def registered(self, name: str, nbytes: int, tensors: int = 16) -> str:
        """A model of this size, which is nowhere yet."""
        path = write_checkpoint(self.folder / f"{name}.safetensors", nbytes, tensors=tensors, label=name)
        return self.daemon.register({"name": name, "artifact": {"path": str(path)}})

    def resident(self, name: str, nbytes: int, tensors: int = 16) -> str:
        """Register a model of this size, and load it into memory."""
        self.daemon.load(self.registered(name, nbytes, tensors))
        return name

    @contextmanager
    def repeating(self, what: str, do: Callable[[Admin], object], pause_s: float = 0.0) -> Iterator[None]:
        """Rounds with a client of the control door, from before the block until after it."""
        with self.daemon.door() as door:
            with Beside(lambda _: do(door), pause_s=pause_s) as beside:
                yield
            self.did.append(f"{beside.rounds} {what}, the longest {format_seconds(beside.longest_s)}")


@contextmanager
def nothing(rig: Rig) -> Iterator[None]:
    """An idle daemon."""
    rig.did.append("nothing else")
    yield


@contextmanager
def cold_loads(rig: Rig) -> Iterator[None]:
    """A large model is loaded from its artifact, evicted, loaded."""
    name = rig.resident("large", rig.sizes.load_bytes)
    with rig.repeating("loads", lambda door: _load_again(door, name)):
        yield


@contextmanager
def evictions(rig: Rig) -> Iterator[None]:
    """Small models are loaded in turns, each of which evicts another one."""
    names = itertools.cycle([rig.resident(f"small-{number}", rig.sizes.small_bytes) for number in range(_SMALL)])
    with rig.repeating("loads in turns", lambda door: door.load(next(names))):
        yield
    with rig.daemon.door() as door:
        evicted = door.status().stats.counters.get("evictions.cpu", 0)
    rig.did.append(f"{evicted} evictions")


@contextmanager
def verifications(rig: Rig) -> Iterator[None]:
    """`trims check --verify`, again and again."""
    rig.resident("large", rig.sizes.load_bytes)
    with rig.repeating("checks", _verify):
        yield


@contextmanager
def large_headers(rig: Rig) -> Iterator[None]:
    """A file of many tiny tensors is loaded from its artifact, evicted, loaded."""
    name = rig.resident("many", rig.sizes.tensors * 64, tensors=rig.sizes.tensors)
    with rig.repeating("loads", lambda door: _load_again(door, name)):
        yield


@contextmanager
def floods(rig: Rig) -> Iterator[None]:
    """Clients send opens and closes of another model without pause, each from a process of its own."""
    given = {"runtime_dir": str(rig.daemon.runtime_dir), "model": rig.resident("flooded", rig.sizes.small_bytes)}
    with ExitStack() as stack:
        clients = [stack.enter_context(started(flood, given)) for _ in range(_FLOODING_CLIENTS)]
        for client in clients:
            client.result()
        yield
        answered = [client.end() for client in clients]
    rig.did.append(f"{sum(answered)} opens for {len(clients)} clients, {min(answered)} for the last of them")


@contextmanager
def slow_looks(rig: Rig) -> Iterator[None]:
    """Another model's file is slow to be looked at. Its opens are sent at fixed times, answered or not."""
    name = rig.resident(SLOW, rig.sizes.small_bytes)
    mark = Path(slow_mark(str(slow_file(rig.folder))))
    mark.touch()
    numbers = itertools.count(1)
    answered: list[int] = []

    def ask(stop: threading.Event) -> None:
        client.send({"op": "open", "id": next(numbers), "model": name})
        stop.wait(rig.sizes.look_pause_s)
        answered.append(_close_granted(client))

    with rig.daemon.raw_client(timeout_s=0) as client:
        client.send(HELLO)
        with Beside(ask) as beside:
            yield
    mark.unlink()
    rig.did.append(f"{beside.rounds} opens of the slow model, {sum(answered)} answered meanwhile")


@contextmanager
def locked_catalog(rig: Rig) -> Iterator[None]:
    """Another process (this one) holds the catalog, and new files are opened cold."""
    import trims

    numbers = itertools.count()

    def open_new(_: threading.Event) -> None:
        number = next(numbers)
        path = write_checkpoint(rig.folder / f"new-{number}.safetensors", rig.sizes.small_bytes, label=f"new-{number}")
        with session.open_file(path, place="cpu") as weights:
            assert not weights.warm, path
        path.unlink()

    with (
        trims.connect(rig.daemon.runtime_dir) as session,
        Beside(lambda stop: _lock(rig, stop), pause_s=_UNLOCKED_S),
        Beside(open_new, pause_s=_COLD_PAUSE_S) as opens,
    ):
        yield
    rig.did.append(f"{opens.rounds} cold opens, the longest {format_seconds(opens.longest_s)}")


def _lock(rig: Rig, stop: threading.Event) -> None:
    with closing(sqlite3.connect(rig.daemon.state_dir / "catalog.db", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        stop.wait(rig.sizes.lock_s)
        database.execute("ROLLBACK")


def _load_again(door: Admin, name: str) -> None:
    door.evict(name, drain=True)
    door.load(name)


def _verify(door: Admin) -> None:
    findings = door.check(verify=True).findings
    assert not findings, findings


def _close_granted(client: RawClient) -> int:
    """Give back what was granted since the last time; returns how many opens were answered."""
    try:
        granted = [message for message in client.receive() if message.get("id") is not None]
    except BlockingIOError:
        return 0
    client.send(*({"op": "close", "lease": message["lease"]} for message in granted))
    return len(granted)


#: Name of the model whose file `trims_bench.altered` makes slow.
SLOW = "slow"


def slow_file(folder: Path) -> Path:
    """Return the path of the model whose file is slow to look at."""
    return folder / f"{SLOW}.safetensors"


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One row of the figure.

    Attributes:
        begin: Prepares, disturbs for the length of the block, and reports its work.
        room: Bytes of shared memory it needs.
    """

    what: str
    begin: Callable[[Rig], AbstractContextManager[None]]
    room: Callable[[Sizes], int] = lambda sizes: 4 * sizes.small_bytes


DISTURBANCES = (
    Disturbance("idle", nothing),
    Disturbance("cold loads of 2 GB", cold_loads, lambda sizes: 2 * sizes.load_bytes),
    Disturbance("evictions", evictions, lambda sizes: _FIT * sizes.small_bytes + sizes.small_bytes // 2),
    Disturbance("check --verify of 2 GB", verifications, lambda sizes: 2 * sizes.load_bytes),
    Disturbance("cold loads of 100,000 tensors", large_headers, lambda sizes: 1000 * sizes.tensors),
    Disturbance("8 flooding clients", floods),
    Disturbance("looks of 3 s at another file", slow_looks),
    Disturbance("locked catalog, cold opens", locked_catalog, lambda sizes: 40 * sizes.small_bytes),
)
