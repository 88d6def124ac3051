"""Clients that behave badly at the attach door: an error ends their session at most, and no other client notices."""

# fault (clients): sends no frame, no JSON, no request, or another protocol -> `bad_message`, `not_supported`; only
# its session ends
# fault (clients): sends half a frame, reads no answers, or floods

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest
from trims_client import connect

from trims.wire.frames import LENGTH, MAX_FRAME_BYTES, Decoder, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

HELLO = encode({"op": "hello", "protocol": 1, "agent": "test"})


class Raw:
    """A client that can say anything."""

    def __init__(self, daemon: Daemon) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(str(daemon.config.runtime_dir / "attach.sock"))
        self.decoder = Decoder()
        self.inbox: list[dict[str, Any]] = []

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self) -> dict[str, Any] | None:
        """The next message, or None at the end of the session."""
        while not self.inbox:
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.inbox += self.decoder.feed(data)
        return self.inbox.pop(0)

    def error_then_end(self) -> str:
        """The code of the error the session ends with."""
        message = self.receive()
        while message is not None and "error" not in message:
            message = self.receive()
        assert message is not None, "the session ended without a word"
        assert self.receive() is None
        return str(message["error"]["code"])


@pytest.fixture
def raw(daemon: Daemon) -> Iterator[Raw]:
    client = Raw(daemon)
    yield client
    client.sock.close()


@pytest.fixture(autouse=True)
def others_do_not_notice(daemon: Daemon, checkpoint: Callable[..., Path]) -> Iterator[None]:
    """A well-behaved client reads before and after, and its lease stays."""
    with connect(daemon.config.runtime_dir) as session, session.open_file(checkpoint("bystander")) as weights:
        expected = float(weights["weight"].sum())
        yield
        assert float(weights["weight"].sum()) == expected
        with session.open_file(checkpoint("another")) as more:
            assert more["weight"].size
        assert not session._channel.broken  # type: ignore[union-attr]


def frame(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


@pytest.mark.parametrize(
    "said",
    [
        b"\x00\x00\x00\x00",
        LENGTH.pack(MAX_FRAME_BYTES + 1),
        b"GET / HTTP/1.1\r\n\r\n",
        frame(b"not json"),
        frame(b"\xff\xfe\xfd"),
        frame(b"[1, 2]"),
        frame(b'"text"'),
        frame(b"[" * 30_000),
        frame(b'{"op": "explode"}'),
        frame(b'{"op": ["open"]}'),
        frame(b"{}"),
        encode({"op": "open", "id": 1, "model": "m"}),
        encode({"op": "hello", "protocol": 1, "agent": 7}),
        encode({"op": "hello", "protocol": "1"}),
        encode({"op": "hello", "protocol": 1, "extra": 1}),
        HELLO + HELLO,
        HELLO + encode({"op": "open", "id": 1}),
        HELLO + encode({"op": "open", "id": 1, "model": "\ud800"}),
        HELLO + encode({"op": "open", "id": 1, "model": "m", "path": "/p"}),
        HELLO + encode({"op": "open", "id": -1, "model": "m"}),
        HELLO + encode({"op": "open", "id": True, "model": "m"}),
        HELLO + encode({"op": "open", "id": 1 << 60, "model": "m"}),
        HELLO + encode({"op": "open", "id": 1, "model": "m" * 5000}),
        HELLO + encode({"op": "open", "id": 1, "model": "a\0b"}),
        HELLO + encode({"op": "open", "id": 1, "model": "m", "deadline_s": -1}),
        HELLO + encode({"op": "open", "id": 1, "model": "m", "deadline_s": "soon"}),
        HELLO + frame(b'{"op": "open", "id": 1, "model": "m", "deadline_s": NaN}'),
        HELLO + encode({"op": "open", "id": 1, "model": "m", "dead_line": 1}),
        HELLO + encode({"op": "close", "id": 1}),
        HELLO + encode({"op": "close", "id": 1, "lease": "all"}),
        HELLO + encode({"op": "resume", "id": 1, "key": 3, "place": "cpu"}),
    ],
)  # fmt: skip
def test_a_malformed_message_ends_its_session_with_an_error(raw: Raw, said: bytes) -> None:
    raw.send(said)
    assert raw.error_then_end() == "bad_message"


def test_another_protocol_version_is_told_both_versions(raw: Raw) -> None:
    raw.send(encode({"op": "hello", "protocol": 99, "agent": "future"}))
    message = raw.receive()
    assert message is not None
    assert message["error"]["code"] == "not_supported"
    assert "99" in message["error"]["message"]
    assert raw.receive() is None


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"op": "open", "model": "nobody"}, "model_not_found"),
        ({"op": "open", "path": "relative.safetensors"}, "bad_request"),
        ({"op": "open", "path": "/nonexistent/m.safetensors"}, "artifact_not_found"),
        ({"op": "open", "model": "m", "place": "moon"}, "bad_request"),
        ({"op": "resume", "key": "00", "place": "cpu"}, "model_not_found"),
    ],
)
def test_a_refused_request_is_answered_and_the_session_goes_on(raw: Raw, asked: dict[str, Any], code: str) -> None:
    raw.send(HELLO + encode({**asked, "id": 5}))
    raw.receive()
    message = raw.receive()
    assert message is not None
    assert (message["id"], message["error"]["code"]) == (5, code)
    raw.send(encode({"op": "close", "id": 6, "lease": 12345}))
    assert raw.receive() == {"id": 6, "closed": 12345}


def test_bytes_that_come_one_by_one_are_a_message_all_the_same(raw: Raw) -> None:
    for byte in HELLO + encode({"op": "close", "id": 1, "lease": 1}):
        raw.send(bytes([byte]))
    greeting = raw.receive()
    assert greeting is not None
    assert greeting["protocol"] == 1
    assert raw.receive() == {"id": 1, "closed": 1}


# fault (clients): sends half a frame, reads no answers, or floods -> `bad_message` after 10 s, or its session ends
def test_a_half_sent_message_ends_the_session_after_a_while(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trims.daemon.attach_door.FRAME_TIMEOUT_S", 0.1)
    raw.send(HELLO)
    raw.receive()
    raw.send(encode({"op": "close", "id": 1, "lease": 1})[:-3])
    assert raw.error_then_end() == "bad_message"


def test_a_client_that_dies_inside_a_message_is_forgotten(daemon: Daemon, raw: Raw) -> None:
    raw.send(HELLO + b"\x00\x00")
    raw.receive()
    before = len(daemon.attach.connections())
    raw.sock.close()
    until = time.monotonic() + 120
    while len(daemon.attach.connections()) >= before:
        assert time.monotonic() < until
        time.sleep(0.002)


def test_a_client_that_never_reads_its_answers_is_ended(daemon: Daemon, raw: Raw) -> None:
    raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    raw.send(HELLO)
    try:
        for number in range(20_000):
            raw.send(encode({"op": "close", "id": number, "lease": 1}))
    except (BrokenPipeError, ConnectionResetError):
        return
    pytest.fail("the daemon kept answers for a client that does not read")


def test_too_many_requests_in_the_air_end_the_session(daemon: Daemon, raw: Raw, folder: Path) -> None:
    os.mkfifo(folder / "never.npz")  # a file whose reading takes for ever, were it a file
    said = b"".join(encode({"op": "open", "id": n, "model": f"nobody-{n}"}) for n in range(300))
    raw.send(HELLO)
    raw.receive()
    raw.send(said)
    codes = set()
    for _ in range(300):  # fewer if the session was ended: a daemon that is quick enough answers them all
        message = raw.receive()
        if message is None:
            break
        codes.add(message["error"]["code"])
        if message["id"] is None:
            break
    assert codes <= {"model_not_found", "bad_message"}


# fault (clients): closes another session's lease, or its own twice -> an ordinary close; the other's lease stays
def test_anothers_lease_cannot_be_closed(daemon: Daemon, raw: Raw) -> None:
    (lease,) = daemon.store.residency.leases.by_number
    raw.send(HELLO + encode({"op": "close", "id": 1, "lease": lease}))
    raw.receive()
    assert raw.receive() == {"id": 1, "closed": lease}
    assert lease in daemon.store.residency.leases.by_number


# fault (clients): sends descriptors -> nothing; none stays open
def test_descriptors_sent_by_a_client_are_not_kept(daemon: Daemon, raw: Raw) -> None:
    reader, writer = os.pipe()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", writer))]
    raw.sock.sendmsg([HELLO], rights)
    os.close(writer)
    raw.receive()
    # No process has the pipe's other end open any more, so reading it ends at once.
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_the_door_closes_all_it_opened(daemon: Daemon) -> None:
    def pollers() -> int:
        targets = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.readlink(t) == "anon_inode:[eventpoll]" for t in targets if os.path.lexists(t))

    from trims.daemon.attach_door import AttachDoor

    before = pollers()
    door = AttachDoor(daemon.store, daemon.config.runtime_dir / "second.sock", budget=daemon.budget)
    door.start()
    assert pollers() == before + 1
    door.stop()
    assert pollers() == before
    assert not (daemon.config.runtime_dir / "second.sock").exists()


def test_a_message_that_is_valid_json_but_huge_is_refused_by_its_length(raw: Raw) -> None:
    body = json.dumps({"op": "hello", "protocol": 1, "agent": "x" * MAX_FRAME_BYTES}).encode()
    raw.send(frame(body)[: MAX_FRAME_BYTES // 2])
    assert raw.error_then_end() == "bad_message"
