"""A close waits for a daemon that is stopped or hangs about a second in all, and still goes out exactly once."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from looking import wait_until
from raw_door import WAIT_S, Door, Peer, grant
from trims_client import connect

from trims.core.errors import DeadlineError, LostPeerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.wire.frames import Message

#: A second, and much room for a slow machine: below what these tests let a daemon have for anything else.
SOON_S = 60.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that waits five minutes, not five seconds, for an answer that it needs: a close that did shows."""
    for module in ("connection.connection", "session"):
        monkeypatch.setattr(f"trims_client.{module}.GRACE_S", 300.0)


def closed(heard: list[Message]) -> list[int]:
    return [message["lease"] for message in heard if message["op"] == "close"]


class Stopped:
    """A daemon that grants so many times, then neither reads nor answers until the test lets it."""

    def __init__(self, fds: list[int]) -> None:
        self.fds = fds
        self.heard: list[Message] = []
        self.go_on = threading.Event()

    def __call__(self, peer: Peer) -> None:
        for lease, fd in enumerate(self.fds, start=1):
            request = peer.hear() if lease > 1 else peer.greeted()
            peer.say(grant(request, fd, lease=lease, key=f"k{fd}"), fd)
        assert self.go_on.wait(WAIT_S)
        peer.listen_to_the_end(self.heard)


# fault (daemon): the next daemon reuses a lease's number; a close to a stopped daemon
def test_only_the_first_close_waits_for_a_daemon_that_is_stopped(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    daemon = Stopped([segment(value) for value in range(6)])
    door.serves(daemon)
    with connect(folder) as session:
        opened = [session.open("m") for _ in daemon.fds]
        began_s = time.monotonic()
        for weights in opened[:4]:
            weights.close()
        took_s = time.monotonic() - began_s
        daemon.go_on.set()
        wait_until(lambda: len(closed(daemon.heard)) == 4, "a close is missing")
        opened[4].close()  # the daemon has been heard again: this one is confirmed, and so is the next
        opened[5].close()
        assert len(closed(daemon.heard)) == 6, "the daemon has both in its books when they return"
    door.end()
    assert took_s < SOON_S
    assert sorted(closed(daemon.heard)) == [1, 2, 3, 4, 5, 6], "each goes out once"


@pytest.mark.timeout(300)
def test_closes_for_which_the_socket_has_no_room_go_out_once_there_is(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    daemon = Stopped([segment()] * 1500)
    door.serves(daemon)
    with connect(folder) as session:
        opened = [session.open("m") for _ in daemon.fds]
        began_s = time.monotonic()
        for weights in opened:
            weights.close()
        took_s = time.monotonic() - began_s
        channel = session._channel
        assert channel is not None
        assert channel.owed, "the socket had room for all: the test shows nothing"
        daemon.go_on.set()
        while channel.owed:
            session._flush()
        session.prefetch("m")
    door.end()
    assert took_s < SOON_S
    assert sorted(closed(daemon.heard)) == list(range(1, 1501)), "each goes out once"


def test_a_late_grant_that_cannot_be_given_back_at_once_is_given_back_later(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fd, go_on, heard = segment(), threading.Event(), []

    def late(peer: Peer) -> None:
        request = peer.greeted()
        assert go_on.wait(WAIT_S)
        peer.say(grant(request, fd, lease=41), fd)
        peer.listen_to_the_end(heard)

    door.serves(late)
    with connect(folder) as session:
        channel = session._channel
        assert channel is not None
        with pytest.raises(DeadlineError):
            channel.request({"op": "open", "model": "m"}, 0.05)
        with channel._sending:  # another thread sends just then
            go_on.set()
            wait_until(lambda: channel.read_arrived() or channel.owed, "the grant does not come")  # type: ignore[func-returns-value]
        session.prefetch("m")
    door.end()
    assert closed(heard) == [41]


def test_a_request_with_a_deadline_does_not_wait_for_room_in_the_socket(door: Door, folder: Path) -> None:
    stop = threading.Event()
    door.serves(lambda peer: peer.greeted() and stop.wait(WAIT_S) and None)
    with connect(folder) as session:
        channel = session._channel
        assert channel is not None
        while channel.notify({"op": "close", "lease": 1}, 0.0):
            pass
        began_s = time.monotonic()
        with pytest.raises(DeadlineError, match=r"within 0\.1 s"):
            channel.request({"op": "open", "model": "m"}, 0.1)
        assert time.monotonic() - began_s < SOON_S
        assert not channel.broken, "nothing was sent by halves"
    stop.set()


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_a_close_does_not_wait_while_a_restarted_daemon_hangs(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fds, hung = [segment(1), segment(2), segment(3)], threading.Event()

    def first_life(peer: Peer) -> None:
        for at, fd in enumerate(fds):
            peer.say(grant(peer.hear() if at else peer.greeted(), fd, lease=at, key=f"k{at}"), fd)

    def hang(peer: Peer) -> None:
        assert peer.greeted()["op"] == "resume"
        hung.set()
        peer.answer_nothing()

    door.serves(first_life, hang)
    with connect(folder) as session:
        opened = [session.open("m") for _ in fds]
        assert hung.wait(WAIT_S)
        began_s = time.monotonic()
        for weights in opened:
            weights.close()
        session.close()
        assert time.monotonic() - began_s < SOON_S


def test_an_open_waits_until_everything_mapped_is_leased_from_a_restarted_daemon(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fds, asked, answer_now = [segment(1), segment(2)], threading.Event(), threading.Event()
    heard: list[Message] = []

    def first_life(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fds[0], key="k1"), fds[0])

    def slow(peer: Peer) -> None:
        heard.append(peer.greeted())
        asked.set()
        assert answer_now.wait(WAIT_S)
        peer.say(grant(heard[0], fds[0], key="k1"), fds[0])
        heard.append(peer.hear())
        peer.say(grant(heard[1], fds[1], lease=2, key="k2"), fds[1])
        peer.listen_to_the_end([])

    door.serves(first_life, slow)
    with connect(folder) as session, session.open("m"):
        opening = threading.Thread(target=lambda: session.open("n").close())
        assert asked.wait(WAIT_S)
        opening.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trims_client.connection.connection.GRACE_S", 0.05)
            with pytest.raises(DeadlineError, match=r"the deadline of 0 s"):
                session.open("o", deadline_s=0.0)
        answer_now.set()
        opening.join(WAIT_S)
    door.end()
    assert [message["op"] for message in heard] == ["resume", "open"]


def test_a_lease_taken_up_while_its_reader_closes_is_given_back(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fd, asked, answer_now = segment(), threading.Event(), threading.Event()
    heard: list[Message] = []

    def slow(peer: Peer) -> None:
        request = peer.greeted()
        asked.set()
        assert answer_now.wait(WAIT_S)
        peer.say(grant(request, fd, lease=70), fd)
        peer.listen_to_the_end(heard)

    door.serves(lambda peer: peer.say(grant(peer.greeted(), fd), fd), slow)
    with connect(folder) as session:
        weights = session.open("m")
        assert asked.wait(WAIT_S)
        weights.close()
        answer_now.set()
        session.prefetch("m")
        session.prefetch("m")
    door.end()
    assert closed(heard) == [70]


def test_a_session_that_is_closed_ends_the_connection_it_is_making(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fd, asked, hung_up = segment(), threading.Event(), threading.Event()

    def hang(peer: Peer) -> None:
        peer.greeted()
        asked.set()
        peer.answer_nothing()
        hung_up.set()

    door.serves(lambda peer: peer.say(grant(peer.greeted(), fd), fd), hang)
    with connect(folder) as session:
        weights = session.open("m")
        assert asked.wait(WAIT_S)
    assert hung_up.wait(SOON_S)
    assert weights["w"].size
    weights.close()


def test_a_daemon_that_hangs_while_a_device_is_opened_holds_up_no_close(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fds, attaching = [segment(1), segment(2)], threading.Event()

    def serve(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fds[0]), fds[0])
        peer.say(grant(peer.hear(), fds[1], lease=2, key="k2", place="gpu:0", device="GPU-1"), fds[1])
        assert peer.hear()["op"] == "attach"
        attaching.set()
        peer.answer_nothing()

    def open_there() -> None:
        with pytest.raises((LostPeerError, DeadlineError)):
            session.open("n", place="gpu")

    door.serves(serve)
    with connect(folder) as session:
        weights = session.open("m")
        opening = threading.Thread(target=open_there)
        opening.start()
        assert attaching.wait(WAIT_S)
        began_s = time.monotonic()
        weights.close()
        took_s = time.monotonic() - began_s
        session.close()
        opening.join(WAIT_S)
    assert took_s < SOON_S
