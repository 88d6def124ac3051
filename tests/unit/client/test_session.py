"""A session with a daemon that lies, dies and comes back: an error that names it, and nothing is leaked."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from raw_door import WAIT_S, Door, Peer, grant, last_words
from trims_client import connect

from trims.core.errors import (
    BadMessageError,
    CallerError,
    CapacityError,
    ImageError,
    ModelNotFoundError,
)
from trims.testing.descriptors import few_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_client.connection.channel import Channel

    from trims.wire.frames import Message


def test_a_grant_without_a_descriptor_is_refused_and_given_back(door: Door, folder: Path) -> None:
    heard = []

    def promise(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), -1, lease=8))
        heard.append(peer.hear())
        peer.say({"id": peer.hear()["id"], "error": {"code": "model_not_found", "message": "no"}})
        peer.listen_to_the_end([])

    door.serves(promise)
    with connect(folder) as session:
        with pytest.raises(ImageError, match="cannot be mapped"):
            session.open("m")
        with pytest.raises(ModelNotFoundError):
            session.open("n")
    door.end()
    assert (heard[0]["op"], heard[0]["lease"]) == ("close", 8)


@pytest.mark.parametrize("left", [0, 1])
def test_a_process_without_descriptors_is_told_the_remedy_and_keeps_its_session(
    left: int, door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fd = segment()

    def serve(peer: Peer) -> None:
        peer.say({"id": peer.greeted()["id"], "error": {"code": "model_not_found", "message": "no"}})
        peer.say(grant(peer.hear(), fd, lease=8), fd)
        assert peer.hear() == {"op": "close", "lease": 8}
        peer.say(grant(peer.hear(), fd, lease=9), fd)
        peer.listen_to_the_end([])

    door.serves(serve)
    with connect(folder) as session:
        with pytest.raises(ModelNotFoundError):
            session.open("n")
        with (
            few_descriptors(left=left),
            pytest.raises(CapacityError, match=r"^m cannot be mapped: no descriptor left: .* \(`ulimit -n`\)$"),
        ):
            session.open("m")
        with session.open("m") as weights:
            assert weights["w"][0] == 7
    door.end()


@pytest.mark.parametrize(
    "lie", [{"nbytes": 1 << 40}, {"nbytes": 0}, {"nbytes": "many"}, {"nbytes": None}, {"lease": "one"}, {"key": None}]
)
def test_a_grant_that_lies_is_an_error_and_leaves_no_descriptor(
    lie: Message, door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fd = segment()

    def lying(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fd, **lie), fd)
        peer.listen_to_the_end([])

    door.serves(lying)
    with connect(folder) as session:
        if lie == {"key": None}:
            session.open("m").close()
        else:
            with pytest.raises((ImageError, BadMessageError)):
                session.open("m")


def test_a_grant_of_something_that_is_no_image_is_refused(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fd = segment(cut=90)

    def short(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fd), fd)
        peer.listen_to_the_end([])

    door.serves(short)
    with connect(folder) as session, pytest.raises(ImageError):
        session.open("m")


@pytest.mark.parametrize("answer", ["the same memory", "new memory", "no descriptor", "gone", "nonsense"])
def test_whatever_a_restarted_daemon_answers_the_weights_stay_readable(
    answer: str, door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    first, second = segment(1), segment(2)
    heard: list[Message] = []

    def before(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), first), first)

    def after(peer: Peer) -> None:
        request = peer.greeted()
        assert (request["op"], request["key"]) == ("resume", "k")
        if answer == "the same memory":
            peer.say(grant(request, first, lease=2), first)
        elif answer == "new memory":
            peer.say(grant(request, second, lease=2), second)
        elif answer == "no descriptor":
            peer.say(grant(request, -1, lease=2))
        elif answer == "gone":
            peer.say({"id": request["id"], "error": {"code": "model_not_found", "message": "not resident"}})
        else:
            peer.say({"id": request["id"], "lease": 2})
        peer.listen_to_the_end(heard)

    door.serves(before, after)
    with connect(folder) as session:
        weights = session.open("m")
        until = time.monotonic() + WAIT_S
        while len(door.threads) < 2:
            assert time.monotonic() < until, "the client did not come back"
            time.sleep(0.005)
        session.prefetch("m")  # waits until the client has asked for what it has mapped
        np.testing.assert_array_equal(weights["w"], np.full(128, 1, np.uint8))
        weights.close()
    door.end()
    closed = [message["lease"] for message in heard if message["op"] == "close"]
    assert closed == ([] if answer == "gone" else [2])


@pytest.mark.parametrize("resident", [True, False])
def test_a_grant_that_outlives_its_daemon_before_it_is_mapped_is_taken_up(
    resident: bool, door: Door, folder: Path, segment: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = segment(5)
    heard: list[Message] = []

    def next_life(peer: Peer) -> None:
        request = peer.greeted()
        heard.append(request)
        gone = {"id": request["id"], "error": {"code": "model_not_found", "message": "not resident"}}
        peer.say(grant(request, fd, lease=70) if resident else gone, *([fd] if resident else []))
        peer.listen_to_the_end(heard)

    door.serves(last_words(fd), next_life)
    with connect(folder) as session:
        borrow = session._borrow

        def borrow_late(channel: Channel, answer: Message, received: int, name: str) -> Any:
            channel.read_to_end()
            session._connection.live_channel()
            return borrow(channel, answer, received, name)

        monkeypatch.setattr(session, "_borrow", borrow_late)
        with session.open("m") as weights:
            assert int(weights["w"][0]) == 5
    door.end()
    assert [message["op"] for message in heard] == (["resume", "close"] if resident else ["resume"])
    assert [message["lease"] for message in heard[1:]] == ([70] if resident else []), "3 was the other daemon's"


def test_a_restarted_daemon_that_hangs_does_not_hang_a_close(
    door: Door, folder: Path, segment: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trims_client.connection.connection.GRACE_S", 0.05)
    fd, hung = segment(), threading.Event()

    def hang(peer: Peer) -> None:
        peer.greeted()
        hung.set()
        peer.listen_to_the_end([])

    door.serves(lambda peer: peer.say(grant(peer.greeted(), fd), fd), hang)
    with connect(folder) as session:
        weights = session.open("m")
        assert hung.wait(WAIT_S)
        assert weights["w"].size
        weights.close()


@pytest.mark.parametrize("name", ["", "a\0", "\ud800", "x" * 5000, 5, None, b"m"])
def test_a_name_that_is_none_is_refused_before_it_costs_the_session(door: Door, folder: Path, name: Any) -> None:
    """The daemon ends a session for such a message, and with it the requests of other threads."""
    heard: list[Message] = []
    door.serves(lambda peer: peer.listen_to_the_end(heard))
    with connect(folder) as session:
        for ask in (session.open, session.prefetch):
            with pytest.raises(CallerError, match=r"is no name of a model or file|no text") as raised:
                ask(name)
            assert not raised.value.retryable
    door.end()
    assert [message["op"] for message in heard if message["op"] != "hello"] == []
