"""A forked child leaves the connection to its parent: the leases end with the parent, and the child still reads."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from raw_door import WAIT_S, Door, Peer, grant
from trims_client import forks
from trims_client.connection.channel import Channel

from trims.core.errors import LostPeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: A process that opens a model, forks a worker and dies. The worker prints what it can do, and lives until its input
#: ends. `{before}` runs before the fork.
PARENT = """
import os, sys, threading, warnings
from trims_client import connect
from trims.core.errors import TrimsError

session = connect(sys.argv[1])
weights = session.open("m")
view = weights["w"]
{before}
if os.fork():
    os._exit(0)
said = [str(int(view[0])), str(int(weights["w"][1]))]
try:
    session.open("n")
except TrimsError as error:
    said.append(type(error).__name__ + " " + str(error))
weights.close()
session.close()
said.append(str(int(view[2])))
print("|".join(said), flush=True)
sys.stdin.read()
"""

#: Another thread of the parent holds the locks at the moment of the fork.
LOCKED = """
held = threading.Event()
def hold():
    locks = [session._mappings.lock, session._connection._connecting, session._channel._turn, session._channel._sending]
    locks += [mapping.attachment._lock for mapping in session._mappings.held()]
    for lock in locks:
        lock.acquire()
    held.set()
    threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
warnings.simplefilter("ignore")
"""


class Family:
    """A parent that has died, and the worker that it forked."""

    def __init__(self, folder: Path, before: str = "") -> None:
        command = [sys.executable, "-c", PARENT.replace("{before}", before), str(folder)]
        self.parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def worker_says(self) -> list[str]:
        """Return what the worker can do; the parent is dead by then."""
        assert self.parent.stdout is not None
        assert self.parent.wait(WAIT_S) == 0
        return self.parent.stdout.readline().strip().split("|")

    def end(self) -> None:
        assert self.parent.stdin is not None
        assert self.parent.stdout is not None
        self.parent.stdin.close()
        self.parent.stdout.read()  # until the worker has ended, too
        self.parent.stdout.close()
        self.parent.wait(WAIT_S)


@pytest.fixture
def hung_up(door: Door, segment: Callable[..., int]) -> Iterator[threading.Event]:
    """Set when the daemon sees the connection's end."""
    fd, seen = segment(), threading.Event()

    def serve(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fd), fd)
        peer.listen_to_the_end([])
        seen.set()

    door.serves(serve)
    return seen


# fault (clients): a worker is forked, and its parent ends -> views stay readable; the parent's lease ends
def test_a_lease_ends_with_its_process_though_a_forked_worker_lives_on(hung_up: threading.Event, folder: Path) -> None:
    family = Family(folder)
    try:
        first, second, refusal, third = family.worker_says()
        ended = hung_up.wait(5.0)
    finally:
        family.end()
    assert ended, "the daemon does not see the parent's end while its worker lives"
    assert (first, second, third) == ("7", "7", "7"), "the worker reads what its parent mapped, also after `close`"
    assert refusal.startswith("ClosedError")
    assert "connect again" in refusal


def test_a_worker_forked_while_a_thread_holds_the_locks_does_not_hang(hung_up: threading.Event, folder: Path) -> None:
    family = Family(folder, LOCKED)
    said: list[str] = []
    reading = threading.Thread(target=lambda: said.extend(family.worker_says()))
    reading.start()
    reading.join(WAIT_S / 2)
    hangs = reading.is_alive()
    family.end() if not hangs else family.parent.stdin.close()  # type: ignore[union-attr]
    reading.join(WAIT_S)
    assert not hangs
    assert said[0] == "7"
    assert hung_up.wait(WAIT_S)


def test_a_channel_is_broken_in_a_child_and_whole_in_its_parent(door: Door, folder: Path) -> None:
    door.serves(lambda peer: peer.listen_to_the_end([]))
    channel = Channel(door.path, "test")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            channel.request({"op": "prefetch", "model": "m"}, 1.0)
        except LostPeerError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = os.read(reader, 1000).decode()
    os.close(reader)
    os.waitpid(child, 0)
    assert "belongs to the process that forked" in said
    assert channel.request({"op": "close", "lease": 3}, WAIT_S)[0]["closed"] == 3
    channel.close()


def test_a_child_forgets_what_its_parent_has_forgotten(door: Door, folder: Path) -> None:
    door.serves_each(lambda peer: peer.listen_to_the_end([]))
    before = len(forks._live)
    made = [Channel(door.path, "test") for _ in range(3)]
    assert len(forks._live) == before + 3
    for channel in made:
        channel.close()
    del channel
    made.clear()
    gc.collect()
    assert len(forks._live) == before


def test_a_fork_costs_nothing_at_import_but_one_registration() -> None:
    count = "import os; seen = []; os.register_at_fork = lambda **what: seen.append(what); "
    work = "import sys; import trims_client; from trims_client import forks; import trims_client.session; "
    tell = "print(len([each for each in seen if each.get('after_in_child') is forks._adapt]))"
    done = subprocess.run([sys.executable, "-c", count + work + tell], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
