"""The client against a daemon that dies, stalls or talks nonsense: an error that names it, and nothing is leaked."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from trims_client import connect
from trims_client.channel import Channel, _Slot
from trims_client.mappings import Mappings
from trims_client.session import _wait_for_end

from trims.core.errors import (
    BadMessageError,
    CapacityError,
    ClosedError,
    DeadlineError,
    ImageError,
    InternalError,
    LostPeerError,
    ModelNotFoundError,
    NotSupportedError,
)
from trims.image.plan import SourceTensor, plan_image
from trims.wire.frames import LENGTH, Decoder, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.wire.frames import Message

WAIT_S = 20.0
GREETING = {"protocol": 1, "boot": "b", "session": 1}


class Peer:
    """The daemon's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(WAIT_S)
        self.decoder = Decoder()
        self.inbox: list[Message] = []

    def hear(self) -> Message:
        """The next message."""
        while not self.inbox:
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionError("the client hung up")
            self.inbox += self.decoder.feed(data)
        return self.inbox.pop(0)

    def say(self, message: Message, *fds: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
        self.sock.sendmsg([encode(message)], rights)

    def listen_to_the_end(self, heard: list[Message]) -> None:
        """Whatever comes until the client hangs up; closes are confirmed."""
        try:
            while True:
                heard.append(self.hear())
                if "id" in heard[-1]:
                    self.say({"id": heard[-1]["id"], "closed": heard[-1].get("lease")})
        except ConnectionError:
            return

    def greeted(self) -> Message:
        """Answer the hello that comes with the first request; returns the request."""
        assert self.hear()["op"] == "hello"
        self.say(GREETING)
        return self.hear()


class Door:
    """A daemon that does as it is told, one script for each connection."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "attach.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.scripts: list[Callable[[Peer], None]] = []
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []
        self.accepting = threading.Thread(target=self._accept)

    def serves(self, *scripts: Callable[[Peer], None]) -> None:
        """What to do with the first connection, the second, ..."""
        self.scripts = list(scripts)
        self.accepting.start()

    def _accept(self) -> None:
        for script in self.scripts:
            sock, _ = self.listener.accept()
            self.threads.append(threading.Thread(target=self._run, args=(script, sock)))
            self.threads[-1].start()

    def _run(self, script: Callable[[Peer], None], sock: socket.socket) -> None:
        with sock:
            try:
                script(Peer(sock))
            except Exception as error:
                self.errors.append(error)

    def end(self) -> None:
        """Every script has run as it was written."""
        self.accepting.join(WAIT_S)
        for thread in (self.accepting, *self.threads):
            thread.join(WAIT_S)
            assert not thread.is_alive()
        self.listener.close()
        assert self.errors == []


@pytest.fixture
def door(folder: Path) -> Iterator[Door]:
    made = Door(folder)
    yield made
    made.end()


@pytest.fixture
def channel(door: Door) -> Iterator[Callable[[], Channel]]:
    made: list[Channel] = []

    def open_channel() -> Channel:
        made.append(Channel(door.path, "test"))
        return made[-1]

    yield open_channel
    for each in made:
        each.close()


@pytest.fixture
def segment() -> Iterator[Callable[..., int]]:
    """Descriptors of images."""
    made: list[int] = []

    def make(value: int = 7, cut: int = 0) -> int:
        def produce(place: memoryview) -> None:
            place[:] = bytes([value]) * 128

        plan = plan_image([SourceTensor("w", "U8", (128,), produce)])
        fd = os.memfd_create("trims-test")
        made.append(fd)
        data = bytearray(plan.nbytes)
        plan.write_into(memoryview(data))
        os.write(fd, data[: len(data) - cut])
        return fd

    yield make
    for fd in made:
        os.close(fd)


def grant(request: Message, fd: int, lease: int = 1, **more: Any) -> Message:
    answer = {"id": request["id"], "lease": lease, "key": "k", "place": "cpu", "generation": 1, "digest": "d",
              "warm": True, "nbytes": os.fstat(fd).st_size if fd >= 0 else 100}  # fmt: skip
    return {**answer, **more}


# -- the channel ---------------------------------------------------------------------------------------------------


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


def test_an_error_about_the_session_is_told_to_who_waits(door: Door, channel: Callable[[], Channel]) -> None:
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


def test_who_gave_up_gives_back_what_comes_late(
    door: Door, channel: Callable[[], Channel], segment: Callable[..., int]
) -> None:
    fd, heard = segment(), []
    gave_up = threading.Event()

    def late(peer: Peer) -> None:
        first = peer.greeted()
        assert gave_up.wait(WAIT_S)
        peer.say(grant(first, fd, lease=41), fd)
        second = peer.hear()
        peer.say({"id": second["id"], "closed": 9})
        heard.append(peer.hear())

    door.serves(late)
    made = channel()
    with pytest.raises(DeadlineError, match=r"did not answer within 0\.1 s"):
        made.request({"op": "open", "model": "m"}, timeout_s=0.05)
    gave_up.set()
    assert made.request({"op": "close", "lease": 9})[0]["closed"] == 9
    door.end()
    assert heard == [{"op": "close", "lease": 41}]


def test_an_answer_that_comes_between_the_last_look_and_giving_up_is_given_back(
    door: Door, channel: Callable[[], Channel], segment: Callable[..., int]
) -> None:
    heard = []
    door.serves(lambda peer: heard.append(peer.greeted()))
    made, slot = channel(), _Slot()
    slot.answer, slot.fd = {"id": 1, "lease": 5}, os.dup(segment())
    made._forget(1, slot)
    door.end()
    assert heard == [{"op": "close", "lease": 5}]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(slot.fd)


def last_words(fd: int) -> Callable[[Peer], None]:
    """Answer one request and hang up in one go."""
    return lambda peer: peer.say(grant(peer.greeted(), fd, lease=3), fd)


def test_what_was_said_before_a_hang_up_is_read_by_the_watcher_if_nobody_reads(
    door: Door, channel: Callable[[], Channel], segment: Callable[..., int]
) -> None:
    door.serves(last_words(segment()))
    made, slot = channel(), _Slot()
    made._slots[1] = slot
    made.tell({"op": "open", "model": "m", "id": 1})
    while not made.broken:
        _wait_for_end(made)
    assert slot.answer is not None
    assert slot.answer["lease"] == 3
    os.close(slot.fd)


def test_a_hang_up_seen_by_the_watcher_does_not_overtake_an_answer_that_is_being_read(
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
    watcher = threading.Thread(target=lambda: reading.wait(WAIT_S) and _wait_for_end(made))
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
            peer.say({"id": request["id"], "error": {"code": "model_not_found", "message": "not resident"}})
            try:
                request = peer.hear()
            except ConnectionError:
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
    made.tell({"op": "open", "model": "m", "id": 41})
    door.end()
    with pytest.raises(LostPeerError, match="closed the connection"):
        made.request({"op": "open", "model": "n"})
    assert slot.answer is not None
    assert slot.answer["lease"] == 3
    os.close(slot.fd)


def test_an_answer_behind_one_that_nobody_waits_for_outlives_the_hang_up(
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
    made.tell({"op": "open", "model": "m", "id": 1})
    door.end()
    made.read_to_end()
    assert slot.answer is not None
    assert slot.answer["lease"] == 3
    os.close(slot.fd)


def test_a_refusal_read_by_the_watcher_is_told_to_who_asks(door: Door, channel: Callable[[], Channel]) -> None:
    refusal = {"id": None, "error": {"code": "not_supported", "message": "install the same trims"}}

    def refuse(peer: Peer) -> None:
        peer.hear()
        peer.say(refusal)

    door.serves(refuse)
    made = channel()
    made.tell({"op": "close", "lease": 1})
    door.end()
    made.read_to_end()
    with pytest.raises(NotSupportedError, match="the same trims"):
        made.request({"op": "open", "model": "m"})


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
        patch.setattr("trims_client.channel._LINGER_S", 0.0)  # go to sleep, with the deadline
        made.request({"op": "close", "lease": 1}, timeout_s=0.2)
    got: list[Message] = []
    second = threading.Thread(target=lambda: got.append(made.request({"op": "close", "lease": 2})[0]))
    second.start()
    assert asked.wait(WAIT_S)
    second.join(0.5)  # longer than the first one's deadline
    answer_now.set()
    second.join(WAIT_S)
    assert [answer["closed"] for answer in got] == [2]


# -- the session ---------------------------------------------------------------------------------------------------


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
        np.testing.assert_array_equal(weights["w"], np.full(128, 1, np.uint8))
        weights.close()
    door.end()
    closed = [message["lease"] for message in heard if message["op"] == "close"]
    assert closed == ([] if answer == "gone" else [2])


@pytest.mark.parametrize("resident", [True, False])
def test_a_grant_whose_daemon_is_replaced_before_it_is_mapped_is_taken_up_with_the_next(
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

        def borrow_late(channel: Channel, answer: Message, received: int) -> Any:
            channel.read_to_end()
            session._connected()
            return borrow(channel, answer, received)

        monkeypatch.setattr(session, "_borrow", borrow_late)
        with session.open("m") as weights:
            assert int(weights["w"][0]) == 5
    door.end()
    assert [message["op"] for message in heard] == (["resume", "close"] if resident else ["resume"])
    assert [message["lease"] for message in heard[1:]] == ([70] if resident else []), "3 was the other daemon's"


def test_a_restarted_daemon_that_hangs_does_not_hang_who_closes(
    door: Door, folder: Path, segment: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trims_client.session._GRACE_S", 0.05)
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


# -- the mappings --------------------------------------------------------------------------------------------------


def test_an_image_is_mapped_once_and_kept_by_its_last_borrower(segment: Callable[..., int]) -> None:
    mappings, fd = Mappings(threading.RLock()), segment()
    request = {"id": 1}
    first = mappings.borrow(grant(request, fd, lease=1), os.dup(fd))
    second = mappings.borrow(grant(request, fd, lease=2), os.dup(fd))
    assert len(mappings.held()) == 1
    first.close()
    first.close()
    assert list(mappings.given_up) == [1]
    with pytest.raises(ClosedError):
        _ = first.data
    assert len(second.data)
    second.close()
    assert list(mappings.given_up) == [1, 2]
    assert mappings.held() == []


def test_a_view_keeps_the_lease_after_everything_is_closed(segment: Callable[..., int]) -> None:
    mappings, fd = Mappings(threading.RLock()), segment()
    borrow = mappings.borrow(grant({"id": 1}, fd, lease=3), os.dup(fd))
    view = borrow.data[-10:]
    borrow.close()
    assert list(mappings.given_up) == []
    assert len(mappings.held()) == 1
    assert bytes(view) == b"\7" * 10
    del view
    assert list(mappings.given_up) == [3]
    assert mappings.held() == []


def test_leases_of_a_daemon_that_is_gone_are_not_given_to_the_next(segment: Callable[..., int]) -> None:
    mappings, fd = Mappings(threading.RLock()), segment()
    borrows = [mappings.borrow(grant({"id": 1}, fd, lease=lease), os.dup(fd)) for lease in (1, 2)]
    (mapping,) = mappings.lose_leases()
    mapping.leases.add(70)
    borrows[0].close()
    assert list(mappings.given_up) == []
    borrows[1].close()
    assert list(mappings.given_up) == [70]


def test_two_daemons_that_count_alike_do_not_mix_up_who_borrows(segment: Callable[..., int]) -> None:
    mappings, fd = Mappings(threading.RLock()), segment()
    before = mappings.borrow(grant({"id": 1}, fd, lease=5), os.dup(fd))
    (mapping,) = mappings.lose_leases()
    mapping.leases.add(1)
    after = mappings.borrow(grant({"id": 1}, fd, lease=5), os.dup(fd))
    before.close()
    assert after.data[-1] == 7
    assert mapping.leases, "nothing is mapped without a lease"
    after.close()
    assert sorted(mappings.given_up) == [1, 5]


def test_what_can_be_written_is_a_copy_of_ones_own(segment: Callable[..., int]) -> None:
    mappings, fd = Mappings(threading.RLock()), segment()
    borrow = mappings.borrow(grant({"id": 1}, fd), os.dup(fd))
    one, other = borrow.private_data(), borrow.private_data()
    one[-1] = 99
    assert (one[-1], other[-1], borrow.data[-1]) == (99, 7, 7)
    del one, other
    borrow.close()
