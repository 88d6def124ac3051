"""The client's connection to a daemon that dies, stalls or talks nonsense: an error that names it, no leak."""

# fault (daemon): it hangs, dies in an answer, sends nonsense or no image -> `lost_peer`, `bad_image`, `bad_message`;
# `close` never hangs; mapped weights stay readable

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import pytest
from raw_door import WAIT_S, Door, Peer, grant, last_words
from trims_client import connect
from trims_client.connection.channel import Channel, _Slot
from trims_client.connection.watch import wait_for_end

from trims.core.errors import (
    BadMessageError,
    CapacityError,
    DeadlineError,
    InternalError,
    LostPeerError,
    NotSupportedError,
)
from trims.testing.descriptors import few_descriptors
from trims.wire.frames import LENGTH, encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.wire.frames import Message


def test_a_daemon_that_dies_while_it_is_asked_is_named(door: Door, channel: Callable[[], Channel]) -> None:
    door.serves(lambda peer: peer.greeted() and None)
    made = channel()
    with pytest.raises(LostPeerError, match=rf"{door.path} ended"):
        made.request({"op": "open", "model": "m"})
    assert made.broken
    with pytest.raises(LostPeerError):
        made.request({"op": "open", "model": "m"})


NONSENSE = {
    "not JSON": LENGTH.pack(3) + b"abc",
    "a list": LENGTH.pack(2) + b"[]",
    "too long": LENGTH.pack(1 << 30),
    "empty": LENGTH.pack(0),
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an id that is a list": encode({"id": [1]}),
    "an id that is a mapping": encode({"id": {"a": 1}, "lease": 1}),
    "pages that are a number": encode({"id": 1, "lease": 1, "pages": 7}),
    "pages of two numbers": encode({"id": 1, "lease": 1, "pages": [[0, 1]]}),
    "an error that is text": encode({"id": None, "error": "no"}),
    "half a frame": encode({"id": 1})[:-2],
}


@pytest.mark.parametrize("said", list(NONSENSE))
def test_nonsense_ends_the_connection_with_an_error(said: str, door: Door, channel: Callable[[], Channel]) -> None:
    door.serves(lambda peer: peer.greeted() and peer.sock.sendall(NONSENSE[said]))
    made = channel()
    with pytest.raises(LostPeerError, match="the connection to the daemon"):
        made.request({"op": "open", "model": "m"})
    assert made.broken


@pytest.mark.parametrize("error", [{"code": 7}, "no", {"code": "capacity", "message": 3}, {}, []])
def test_an_error_of_any_shape_is_raised_as_one(error: Any, door: Door, channel: Callable[[], Channel]) -> None:
    door.serves(lambda peer: peer.say({"id": peer.greeted()["id"], "error": error}))
    with pytest.raises((CapacityError, InternalError, BadMessageError)):
        channel().request({"op": "open", "model": "m"})


def test_an_error_about_the_session_is_told_to_every_thread_that_waits(
    door: Door, channel: Callable[[], Channel]
) -> None:
    refusal = {"id": None, "error": {"code": "not_supported", "message": "install the same trims"}}

    def refuse(peer: Peer) -> None:
        peer.hear()
        peer.say(refusal)

    door.serves(refuse)
    with pytest.raises(NotSupportedError, match="the same trims"):
        channel().request({"op": "open", "model": "m"})


def test_an_error_that_brings_a_descriptor_leaves_none(
    door: Door, channel: Callable[[], Channel], segment: Callable[..., int]
) -> None:
    fd = segment()
    error = {"code": "capacity", "message": "full"}
    door.serves(lambda peer: peer.say({"id": peer.greeted()["id"], "lease": 1, "error": error}, fd))
    before = os.listdir("/proc/self/fd")
    made = channel()
    with pytest.raises(CapacityError):
        made.request({"op": "open", "model": "m"})
    made.close()
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 1  # the door's own end


@pytest.mark.parametrize("left", [0, 2])
def test_an_answer_whose_descriptors_find_no_room_is_given_back(
    left: int, door: Door, channel: Callable[[], Channel], segment: Callable[..., int]
) -> None:
    fd, heard = segment(), []

    def serve(peer: Peer) -> None:
        peer.say({"id": peer.greeted()["id"], "closed": 9})
        peer.say(grant(peer.hear(), fd, lease=41, pages=[[0, 1, 0], [0, 1, 0]]), fd, fd, fd)
        heard.append(peer.hear())
        peer.say(grant(peer.hear(), fd, lease=42), fd)

    door.serves(serve)
    made = channel()
    made.request({"op": "close", "lease": 9})
    before = len(os.listdir("/proc/self/fd"))
    with (
        few_descriptors(left=left),
        pytest.raises(CapacityError, match=f"daemon at {door.path} was lost: no descriptor left: this process may"),
    ):
        made.request({"op": "open", "model": "m"})
    answer, got = made.request({"op": "open", "model": "m"})
    assert answer["lease"] == 42
    assert os.fstat(got).st_ino == os.fstat(fd).st_ino
    os.close(got)
    assert len(os.listdir("/proc/self/fd")) <= before, "the grant's descriptors were closed"
    door.end()
    assert heard == [{"op": "close", "lease": 41}]


def test_a_channel_for_which_there_is_no_descriptor_is_a_lack_of_room() -> None:
    with (
        few_descriptors(left=0),
        pytest.raises(CapacityError, match="daemon at /run/x cannot be asked: no descriptor left"),
    ):
        Channel("/run/x", "test")


def test_answers_may_come_in_another_order_than_the_questions(
    door: Door, channel: Callable[[], Channel], segment: Callable[..., int]
) -> None:
    fds = {"cold": segment(1), "warm": segment(2)}
    asked: list[Message] = []
    both_asked = threading.Event()

    def turn_round(peer: Peer) -> None:
        asked.append(peer.greeted())
        both_asked.set()
        asked.append(peer.hear())
        for request in reversed(asked):
            peer.say(grant(request, fds[request["model"]], lease=request["id"]), fds[request["model"]])

    door.serves(turn_round)
    made = channel()
    got: dict[str, tuple[Message, int]] = {}

    def ask(model: str) -> None:
        got[model] = made.request({"op": "open", "model": model})

    cold = threading.Thread(target=ask, args=("cold",))
    cold.start()
    assert both_asked.wait(WAIT_S)
    ask("warm")
    cold.join(WAIT_S)
    for model, value in (("cold", 1), ("warm", 2)):
        answer, fd = got[model]
        assert os.pread(fd, 1, answer["nbytes"] - 1) == bytes([value]), "each got its own descriptor"
        os.close(fd)


# fault (daemon): it answers after the client gave up -> `deadline`; the lease is given back
def test_a_thread_that_gave_up_gives_back_what_comes_late(
    door: Door, channel: Callable[[], Channel], segment: Callable[..., int]
) -> None:
    fd, heard = segment(), []
    gave_up = threading.Event()

    def late(peer: Peer) -> None:
        first = peer.greeted()
        assert gave_up.wait(WAIT_S)
        peer.say(grant(first, fd, lease=41, pages=[[0, 1, 0], [0, 1, 0]]), fd, fd, fd)
        second = peer.hear()
        peer.say({"id": second["id"], "closed": 9})
        heard.append(peer.hear())

    door.serves(late)
    made = channel()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DeadlineError, match=r"did not answer within 0\.05 s"):
        made.request({"op": "open", "model": "m"}, timeout_s=0.05)
    gave_up.set()
    assert made.request({"op": "close", "lease": 9})[0]["closed"] == 9
    door.end()
    assert heard == [{"op": "close", "lease": 41}]
    assert len(os.listdir("/proc/self/fd")) <= before, "the grant's descriptors were closed"


def test_an_answer_that_comes_between_the_last_look_and_giving_up_is_given_back(
    door: Door, channel: Callable[[], Channel], segment: Callable[..., int]
) -> None:
    heard = []
    door.serves(lambda peer: heard.append(peer.greeted()))
    made, slot = channel(), _Slot()
    slot.answer, slot.fd = {"id": 1, "lease": 5}, os.dup(segment())
    made._forget(slot)
    door.end()
    assert heard == [{"op": "close", "lease": 5}]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(slot.fd)


# fault (daemon): it hangs, dies in an answer, sends nonsense or no image
def test_a_hang_up_that_the_watcher_sees_does_not_overtake_an_answer(
    door: Door, channel: Callable[[], Channel], segment: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    door.serves(last_words(segment()))
    made = channel()
    reading, watcher_waits = threading.Event(), threading.Event()
    read_soon, wait = made._read_soon, made._turn.wait

    def read_when_the_watcher_has_seen_it() -> bool:
        reading.set()
        assert watcher_waits.wait(WAIT_S), "the watcher did not leave the end to the reader"
        return read_soon()

    def wait_and_tell(timeout: float | None = None) -> bool:
        watcher_waits.set()
        return wait(timeout)

    monkeypatch.setattr(made, "_read_soon", read_when_the_watcher_has_seen_it)
    monkeypatch.setattr(made._turn, "wait", wait_and_tell)
    watcher = threading.Thread(target=lambda: reading.wait(WAIT_S) and wait_for_end(made, threading.Lock()))
    watcher.start()
    answer, fd = made.request({"op": "open", "model": "m"})
    os.close(fd)
    assert answer["lease"] == 3
    watcher_waits.set()
    with pytest.raises(LostPeerError, match="closed the connection"):
        made.request({"op": "open", "model": "n"})
    watcher.join(WAIT_S)
    assert made.broken


@pytest.mark.parametrize("turn", range(20))
def test_an_answer_and_a_hang_up_in_one_go_are_an_answer_with_the_watcher_polling(
    turn: int, door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fds, came_back = [segment(1), segment(2)], threading.Event()

    def twice(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fds[0], lease=1), fds[0])
        request = peer.hear()
        while request["op"] != "open":  # the watcher may have given something back
            request = peer.hear()
        peer.say(grant(request, fds[1], lease=2, key="k2"), fds[1])

    def next_life(peer: Peer) -> None:
        request = peer.greeted()
        assert request["op"] == "resume", "an open was asked again: its answer was lost"
        came_back.set()
        while True:
            try:
                peer.say({"id": request["id"], "error": {"code": "model_not_found", "message": "not resident"}})
                request = peer.hear()
            except ConnectionError:  # the session was closed; it does not wait for what is asked just then
                return

    door.serves(twice, next_life)
    with connect(folder) as session, session.open("a") as first:
        assert session._watched
        with session.open("b") as second:
            assert (int(first["w"][0]), int(second["w"][0])) == (1, 2)
            assert came_back.wait(WAIT_S)


def test_an_answer_that_lies_unread_outlives_a_failing_send(
    door: Door, channel: Callable[[], Channel], segment: Callable[..., int]
) -> None:
    door.serves(last_words(segment()))
    made, slot = channel(), _Slot()
    made._slots[41] = slot
    made.notify({"op": "open", "model": "m", "id": 41})
    door.end()
    with pytest.raises(LostPeerError, match="closed the connection"):
        made.request({"op": "open", "model": "n"})
    assert slot.answer is not None
    assert slot.answer["lease"] == 3
    os.close(slot.fd)


def test_an_answer_behind_one_that_is_not_awaited_outlives_the_hang_up(
    door: Door, channel: Callable[[], Channel], segment: Callable[..., int]
) -> None:
    fd = segment()

    def late_and_gone(peer: Peer) -> None:
        request = peer.greeted()
        late, answer = grant({"id": 99}, fd, lease=9), grant(request, fd, lease=3)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", fd, fd))]
        peer.sock.sendmsg([encode(late) + encode(answer)], rights)

    door.serves(late_and_gone)
    made, slot = channel(), _Slot()
    made._slots[1] = slot
    made.notify({"op": "open", "model": "m", "id": 1})
    door.end()
    made.read_to_end()
    assert slot.answer is not None
    assert slot.answer["lease"] == 3
    os.close(slot.fd)


def test_the_deadline_of_one_request_is_not_that_of_the_next(
    door: Door, channel: Callable[[], Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer_now = threading.Event(), threading.Event()

    def slow(peer: Peer) -> None:
        peer.say({"id": peer.greeted()["id"], "closed": 1})
        second = peer.hear()
        asked.set()
        assert answer_now.wait(WAIT_S)
        peer.say({"id": second["id"], "closed": 2})

    door.serves(slow)
    made = channel()
    with monkeypatch.context() as patch:
        patch.setattr("trims_client.connection.channel._BUSY_POLL_S", 0.0)  # go to sleep, with the deadline
        made.request({"op": "close", "lease": 1}, timeout_s=0.2)
    got: list[Message] = []
    second = threading.Thread(target=lambda: got.append(made.request({"op": "close", "lease": 2})[0]))
    second.start()
    assert asked.wait(WAIT_S)
    second.join(0.5)  # longer than the first one's deadline
    answer_now.set()
    second.join(WAIT_S)
    assert [answer["closed"] for answer in got] == [2]
