"""A daemon that refuses a client at its door: the open raises that error, and the client does not run against it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from looking import wait_until
from raw_door import WAIT_S, Door, Peer, grant
from trims_client import connect

from trims.core.errors import CapacityError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.wire.frames import Message

REFUSAL = {"id": None, "error": {"code": "capacity", "message": "1024 sessions are the limit"}}


def at_once(peer: Peer) -> None:
    """Refuse before anything was read, so that the door is gone when the client sends."""
    peer.say(REFUSAL)


def with_the_request_unread(peer: Peer) -> None:
    """The connection is reset, as what the client sent lies unread."""
    peer.sock.recv(1)
    peer.say(REFUSAL)


def after_the_hello(peer: Peer) -> None:
    peer.hear()
    peer.say(REFUSAL)


def after_the_greeting(peer: Peer) -> None:
    peer.greeted()
    peer.say(REFUSAL)


ORDERS = [at_once, with_the_request_unread, after_the_hello, after_the_greeting]


@pytest.mark.parametrize("refuse", ORDERS)
@pytest.mark.parametrize("fallback", [None, "load"])
def test_an_open_raises_what_the_door_refused_with(
    refuse: Callable[[Peer], None], fallback: str | None, door: Door, folder: Path
) -> None:
    door.serves_each(refuse)
    with connect(folder, fallback=fallback) as session:
        if refuse is at_once:
            wait_until(lambda: door.threads and not door.threads[0].is_alive(), "the door is not closed")
        with pytest.raises(CapacityError, match="1024 sessions are the limit"):
            session.open("m")
        assert door.served == 1, "an open asks once"
        with pytest.raises(CapacityError):
            session.open("m")
        assert door.served == 2, "the next one tries again"


@pytest.mark.parametrize("refuse", ORDERS)
def test_a_refusal_at_the_door_is_not_about_a_place(
    refuse: Callable[[Peer], None], door: Door, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    door.serves_each(refuse)
    with connect(folder) as session, pytest.raises(CapacityError):
        session.open("m", place=("gpu", "cpu"))
    assert door.served == 1
    assert "not opened at gpu" not in caplog.text


@pytest.mark.parametrize("mapped", [True, False])
def test_a_session_that_lost_its_daemon_comes_back_slowly_to_one_that_refuses(
    mapped: bool, door: Door, folder: Path, segment: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    fd, resumed = segment(), threading.Event()
    admit = threading.Event()
    heard: list[Message] = []

    def serve(peer: Peer) -> None:
        if door.served == 1:
            peer.say(grant(peer.greeted(), fd), fd)
        elif not admit.is_set():
            at_once(peer)
        else:
            request = peer.greeted()
            if request["op"] == "resume":
                peer.say(grant(request, fd, lease=70), fd)
            else:
                peer.say({"id": request["id"], "accepted": True})
            resumed.set()
            peer.listen_to_the_end(heard)

    door.serves_each(serve)
    with connect(folder) as session:
        weights = session.open("m")
        if not mapped:
            weights.close()
        wait_until(lambda: door.served >= 2, "the client does not come back")
        began_s, before = time.monotonic(), door.served
        with pytest.raises(CapacityError):
            session.open("n")
        time.sleep(0.6)  # what is counted is what the client does on its own
        tries = door.served - before
        assert tries < 4 + 20 * (time.monotonic() - began_s), f"{tries} connections"
        assert "without a lease" not in caplog.text, "it is not refused what it asked for"
        admit.set()
        if mapped:
            assert resumed.wait(WAIT_S), "the lease is taken up when there is room again"
            assert int(weights["w"][0]) == 7
            session.prefetch("m")
            weights.close()
            wait_until(lambda: any(message.get("lease") == 70 for message in heard), "the lease is not given back")


def test_a_refusal_while_leases_are_taken_up_is_raised_by_the_open(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fd, came = segment(), []

    def serve(peer: Peer) -> None:
        if door.served == 1:
            peer.say(grant(peer.greeted(), fd), fd)
        else:
            came.append(peer)
            after_the_hello(peer)

    door.serves_each(serve)
    with connect(folder, fallback="load") as session, session.open("m") as weights:
        wait_until(lambda: bool(came), "the client does not come back")
        for _ in range(5):
            with pytest.raises(CapacityError):
                session.open("n")
        assert int(weights["w"][0]) == 7
