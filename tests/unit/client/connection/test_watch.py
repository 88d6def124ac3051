"""The watch thread: it notices the daemon's end, reads events, and tries again ever more rarely."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from raw_door import WAIT_S, Door, Peer, last_words
from trims_client.connection.channel import Channel, _Slot
from trims_client.connection.connection import Connection
from trims_client.connection.watch import outlive, wait_for_end, watch
from trims_client.mapping.mappings import MappedImages

from trims.core.errors import (
    DaemonAwayError,
    NotSupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.wire.frames import Message


def lost(lease: int) -> Message:
    return {"event": "lost", "lease": lease, "message": "the keeper has ended"}


def test_the_watcher_reads_only_if_no_other_thread_does(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    said = threading.Event()

    def speak(peer: Peer) -> None:
        peer.greeted()
        peer.say(lost(1))
        said.set()
        peer.listen_to_the_end([])

    door.serves(speak)
    monkeypatch.setattr("trims_client.connection.watch._WAKE_MS", 1)
    channel = Channel(door.path, "test")
    channel.notify({"op": "close", "lease": 1})
    assert said.wait(WAIT_S)
    channel._reading = 1
    wait_for_end(channel, threading.Lock())
    assert not channel.events
    channel._reading = 0
    wait_for_end(channel, threading.Lock())
    assert [event["lease"] for event in channel.events] == [1]
    wait_for_end(channel, threading.Lock())
    assert not channel._reading
    channel.close()
    wait_for_end(channel, threading.Lock())


def test_the_watcher_reads_what_was_said_before_a_hang_up(
    door: Door, channel: Callable[[], Channel], segment: Callable[..., int]
) -> None:
    door.serves(last_words(segment()))
    made, slot = channel(), _Slot()
    made._slots[1] = slot
    made.notify({"op": "open", "model": "m", "id": 1})
    while not made.broken:
        wait_for_end(made, threading.Lock())
    assert slot.answer is not None
    assert slot.answer["lease"] == 3
    os.close(slot.fd)


def test_a_refusal_read_by_the_watcher_is_told_to_the_next_thread_that_asks(
    door: Door, channel: Callable[[], Channel]
) -> None:
    refusal = {"id": None, "error": {"code": "not_supported", "message": "install the same trims"}}

    def refuse(peer: Peer) -> None:
        peer.hear()
        peer.say(refusal)

    door.serves(refuse)
    made = channel()
    made.notify({"op": "close", "lease": 1})
    door.end()
    made.read_to_end()
    with pytest.raises(NotSupportedError, match="the same trims"):
        made.request({"op": "open", "model": "m"})


class Away:
    """A session whose daemon answers no connection, until it has been asked so often; then it is closed."""

    def __init__(self, tries: int) -> None:
        self.tries = tries
        self._channel = None
        self._connection = self

    @property
    def closed(self) -> bool:
        return self.tries == 0

    def live_channel(self) -> None:
        self.tries -= 1
        raise DaemonAwayError("no daemon")

    def _flush(self) -> None:
        raise AssertionError("there is no connection to flush")


def test_pauses_grow_while_the_daemon_is_away_and_the_watch_ends_with_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("trims_client.connection.watch.time.sleep", pauses.append)
    session: Any = Away(8)
    watch(lambda: session, threading.Lock())
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_a_watch_whose_session_was_dropped_ends() -> None:
    watch(lambda: None, threading.Lock())


class Mapped:
    """Images of a dropped session, of which one is let go at each look."""

    def __init__(self, held: int) -> None:
        self.left = held

    def close_dropped(self) -> None:
        self.left -= 1

    def held(self) -> bool:
        return self.left > 0


def test_a_dropped_sessions_connection_ends_when_its_last_image_is_gone(
    door: Door, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Message] = []
    door.serves(lambda peer: peer.listen_to_the_end(heard))
    mappings: Any = Mapped(3)
    connection = Connection(door.path, "test", MappedImages())
    connection.begin()
    pauses: list[float] = []
    monkeypatch.setattr("trims_client.connection.watch.time.sleep", pauses.append)
    outlive(mappings, connection, threading.Lock())
    assert len(pauses) == 2
    assert connection.closed
    outlive(mappings, connection, threading.Lock())  # it was closed: there is nothing to wait for
    assert len(pauses) == 2
