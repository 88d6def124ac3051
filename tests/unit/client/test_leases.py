"""Images that a client reads stay leased, and those that it no longer reads are given back, across daemon restarts.

Each daemon counts its leases from 1, so two daemons grant the same numbers. A model of the daemon keeps the books, and
a random driver opens, closes, reads, restarts and resumes in every order, also in the midst of a request.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import socket
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from raw_door import WAIT_S, Door, Peer, grant
from trims_client import connect

from trims.core.errors import TrimsError
from trims.wire.frames import Decoder, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims_client import Session, Weights

    from trims.wire.frames import Message

KEYS = ("a", "b", "c", "d")


def identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class Life:
    """One daemon, from its start to its end: memory by image key, and leases by number from 1."""

    def __init__(self, world: World, memory: dict[str, int]) -> None:
        self.world = world
        self.memory = memory
        self.books: dict[int, tuple[int, int]] = {}
        self.over: set[int] = set()
        self.granted = 0
        self.sockets: list[FakeSocket] = []

    def hear(self, sock: FakeSocket, message: Message) -> None:
        op, number = message["op"], message.get("id")
        if op == "hello":
            sock.say({"protocol": 1, "boot": str(id(self)), "session": 1})
        elif op == "prefetch":
            sock.say({"id": number, "accepted": True})
        elif op == "close":
            self.close(message["lease"])
            if number is not None:
                sock.say({"id": number, "closed": message["lease"]})
        else:
            self.grant(sock, message, message["key"] if op == "resume" else message["model"])

    def grant(self, sock: FakeSocket, message: Message, key: str) -> None:
        if key not in self.memory:
            if message["op"] == "resume":
                sock.say({"id": message["id"], "error": {"code": "model_not_found", "message": "not resident"}})
                return
            self.memory[key] = self.world.new_memory()
        self.granted += 1
        self.books[self.granted] = identity(self.memory[key])
        sock.leases.add(self.granted)
        sock.say(grant(message, self.memory[key], lease=self.granted, key=key), self.memory[key])

    def close(self, lease: int) -> None:
        if lease in self.over:  # the close and the news of the loss have crossed
            self.over.discard(lease)
            return
        assert lease in self.books, f"lease {lease} is given back, but this daemon's books have {sorted(self.books)}"
        memory = self.books.pop(lease)
        if memory in self.world.reachable():
            assert memory in self.books.values(), f"lease {lease} was the last one of memory that is still read"

    def lose(self, lease: int) -> None:
        """The memory of a lease is lost, as when the keeper of a device has ended."""
        memory = self.books[lease]
        self.memory = {key: fd for key, fd in self.memory.items() if identity(fd) != memory}
        self.world.lost.add(memory)
        for number in [number for number, each in self.books.items() if each == memory]:
            del self.books[number]
            self.over.add(number)
            for sock in self.sockets:
                sock.say({"event": "lost", "lease": number, "message": "the keeper has ended"})

    def hung_up(self, sock: FakeSocket) -> None:
        """A session's leases end with its socket."""
        self.sockets = [each for each in self.sockets if each is not sock]
        for lease in sock.leases:
            self.books.pop(lease, None)

    def end(self) -> None:
        for sock in self.sockets:
            sock.ended = True
        self.books.clear()


class FakeSocket:
    """The client's socket, whose other end is a `Life`. What is not there yet never comes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.life: Life | None = None
        self.ended = False
        self.leases: set[int] = set()
        self.decoder = Decoder()
        self.inbox: list[tuple[bytes, list[int]]] = []

    def connect(self, path: str) -> None:
        if self.world.life is None:
            raise ConnectionRefusedError(111, "Connection refused")
        self.life = self.world.life
        self.life.sockets.append(self)

    def say(self, message: Message, *fds: int) -> None:
        if not self.ended:
            self.inbox.append((encode(message), [os.dup(fd) for fd in fds]))

    def send(self, data: bytes, flags: int = 0) -> int:
        self.world.disturb()
        if self.ended or self.life is None:
            raise BrokenPipeError(32, "Broken pipe")
        for message in self.decoder.feed(bytes(data)):
            self.life.hear(self, message)
        self.world.disturb()
        return len(data)

    def recvmsg(self, size: int, ancillary: int, flags: int) -> tuple[bytes, list[Any], int, None]:
        self.world.disturb()
        if self.inbox:
            data, fds = self.inbox.pop(0)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))
            return data, [rights] if fds else [], 0, None
        if self.ended:
            return b"", [], 0, None
        raise BlockingIOError

    def getsockopt(self, *which: int) -> bytes:
        return struct.pack("3i", 1, os.geteuid(), 1)

    def setsockopt(self, *what: object) -> None:
        return

    def shutdown(self, how: int) -> None:
        return

    def close(self) -> None:
        self.ended = True
        if self.life is not None:
            self.life.hung_up(self)
        for _, fds in self.inbox:
            for fd in fds:
                os.close(fd)
        self.inbox.clear()


class World:
    """The daemon of now, a session, and everything its process reads."""

    def __init__(self, new_memory: Callable[[], int]) -> None:
        self.random = random.Random(0)
        self.new_memory = new_memory
        self.life: Life | None = Life(self, {})
        self.session: Session | None = None
        self.open: list[tuple[Weights, tuple[int, int]]] = []
        self.views: list[tuple[memoryview, tuple[int, int]]] = []
        self.lost: set[tuple[int, int]] = set()
        self.disturbing = True
        #: Function after whose call every answer is waited for.
        self.calm_down: Callable[[], None] = lambda: None
        #: Nothing comes between here: a step of the driver, or of the model.
        self.busy = False
        self.awaited: list[Callable[[], Any]] = []
        self.mapped: list[Any] = []

    def reachable(self) -> set[tuple[int, int]]:
        return {memory for _, memory in (*self.open, *self.views)} - self.lost

    def disturb(self) -> None:
        """Act as other threads and the daemon do while a request is under way."""
        if self.busy or not self.disturbing or self.random.random() > 0.2:
            return
        others = [self.close_one] * 4 + [self.drop_view] * 2 + [self.map_awaited] * 3 + [self.kill, self.start]
        self.busy = True
        try:
            self.random.choice(others)()
        finally:
            self.busy = False

    def step(self) -> None:
        steps = [self.open_one] * 4 + [self.close_one] * 4 + [self.take_view, self.drop_view] * 2
        steps += [self.kill, self.start, self.start, self.flush, self.ask, self.give_up, self.lose_one]
        with contextlib.suppress(TrimsError):
            self.random.choice(steps)()

    def open_one(self) -> None:
        assert self.session is not None
        weights = self.session.open(self.random.choice(KEYS))
        attached: Any = weights._attachment
        self.open.append((weights, attached.mapping.identity))

    def late(self, borrow: Callable[[], Any]) -> Any:
        """Delay a mapping: after its grant other threads open and connect again, the daemon ends or loses memory."""
        if self.busy or self.awaited or self.random.random() < 0.7:
            return borrow()
        self.awaited = [borrow]
        for each in self.random.choice([[self.kill, self.start, self.ask], [self.open_one], [self.lose_one, self.ask]]):
            with contextlib.suppress(TrimsError):
                each()
            with contextlib.suppress(TrimsError):
                self.open_one()
        self.map_awaited()
        return self.mapped.pop()

    def map_awaited(self) -> None:
        """The thread that was granted something comes to map it, perhaps while another one connects again."""
        if self.awaited:
            self.mapped.append(self.awaited.pop()())

    def close_one(self) -> None:
        if self.open:
            weights, _ = self.open.pop(self.random.randrange(len(self.open)))
            weights.close()

    def take_view(self) -> None:
        if self.open:
            weights, memory = self.random.choice(self.open)
            self.views.append((weights.raw("w"), memory))

    def drop_view(self) -> None:
        if self.views:
            del self.views[self.random.randrange(len(self.views))]

    def kill(self) -> None:
        if self.life is not None:
            self.life.end()
            self.memory_of_the_dead = self.life.memory
            self.life = None

    def start(self) -> None:
        """The next daemon adopts some of what its predecessor left."""
        if self.life is None:
            adopted = {key: fd for key, fd in self.memory_of_the_dead.items() if self.random.random() < 0.8}
            self.life = Life(self, adopted)

    def flush(self) -> None:
        assert self.session is not None
        self.session._flush()

    def ask(self) -> None:
        assert self.session is not None
        self.session.prefetch("a")

    def give_up(self) -> None:
        """A request whose answer comes too late."""
        assert self.session is not None
        channel = self.session._channel
        if channel is not None and not channel.broken:
            slot = channel.ask({"op": "open", "model": self.random.choice(KEYS)}, None)
            assert slot is not None
            channel._forget(slot)

    def lose_one(self) -> None:
        if self.life is not None and self.life.books:
            self.life.lose(self.random.choice(list(self.life.books)))

    def check(self) -> None:
        """Everything that is read, and that the daemon has, is leased."""
        assert self.session is not None
        channel = self.session._channel
        if self.life is None or channel is None or channel.broken or channel._sock not in self.life.sockets:  # type: ignore[comparison-overlap]
            return  # not connected with the daemon of now: nothing can be leased
        held = {identity(fd) for fd in self.life.memory.values()}
        missing = (self.reachable() & held) - set(self.life.books.values())
        assert not missing, "memory is read without a lease"


@pytest.fixture
def world(segment: Callable[..., int], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(segment)
    fake = {**vars(socket), "socket": lambda *kind: FakeSocket(made)}
    monkeypatch.setattr("trims_client.connection.channel.socket", SimpleNamespace(**fake))
    monkeypatch.setattr("trims_client.connection.channel._BUSY_POLL_S", 1e-5)

    def patience(seconds: float) -> None:
        monkeypatch.setattr("trims_client.connection.connection.SETTLE_S", seconds)
        monkeypatch.setattr("trims_client.connection.connection.GRACE_S", seconds)

    patience(0.002)  # what is asked in the midst of a request has no thread of its own to read the answer
    made.calm_down = lambda: patience(WAIT_S)
    with connect(folder) as session:
        made.session = session
        session._watched = True  # no thread of its own: the driver says when the connection's end is noticed
        borrow = session._borrow

        def borrow_late(*grant: Any) -> Any:
            made.disturb()
            return made.late(lambda: borrow(*grant))

        monkeypatch.setattr(session, "_borrow", borrow_late)
        yield made
        made.disturbing = False
        made.open.clear()
        made.views.clear()
        gc.collect()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_read_is_leased_and_every_lease_is_given_back(seed: int, world: World) -> None:
    world.random.seed(seed)
    for _ in range(150):
        world.step()
        world.check()
    world.disturbing = False
    world.calm_down()
    world.start()
    world.ask()
    while world.open:
        world.close_one()
        world.check()
    while world.views:
        world.drop_view()
        world.check()
    world.ask()
    world.flush()
    assert world.life is not None
    assert world.life.books == {}, "leases are left although nothing is read any more"


# fault (daemon): the next daemon reuses a lease's number; a close to a stopped daemon -> nothing; a close is sent
# once, only where it was granted
def test_a_lease_of_the_next_daemon_outlives_a_close_of_the_same_old_number(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fd = segment()
    heard: list[Message] = []

    def first_life(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fd, lease=5), fd)
        peer.say(grant(peer.hear(), fd, lease=6), fd)

    def second_life(peer: Peer) -> None:
        request = peer.greeted()
        assert request["op"] == "resume"
        peer.say(grant(request, fd, lease=5), fd)
        peer.listen_to_the_end(heard)

    door.serves(first_life, second_life)
    with connect(folder) as session:
        channel = session._channel  # before the first life ends, behind which the session has another
        first, second = session.open("m"), session.open("m")
        assert channel is not None
        channel.read_to_end()
        session.prefetch("m")
        first.close()
        session.prefetch("m")
        assert [message for message in heard if message["op"] == "close"] == [], "the second reads under this lease"
        assert second["w"][0] == 7
        second.close()
    door.accepting.join(WAIT_S)
    door.end()
    assert [message["lease"] for message in heard if message["op"] == "close"] == [5]
