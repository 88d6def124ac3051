"""The attach door: greetings, sessions and their ends, losses, and work in the door's own thread."""

from __future__ import annotations

import os
import queue
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from looking import wait_until
from on_device import Raw, raws

from trims.core.place import CPU
from trims.wire.answers import PROTOCOL_VERSION
from trims.wire.frames import Decoder, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon


@pytest.fixture
def client() -> Iterator[Callable[[Daemon], Raw]]:
    yield from raws()


def ended(raw: Raw) -> bool:
    """Return whether the daemon has closed its end."""
    return raw.sock.recv(65536) == b""


def test_a_greeted_client_is_a_session_until_its_socket_closes(daemon: Daemon, client: Callable[[Daemon], Raw]) -> None:
    client(daemon)
    second = client(daemon)
    first_seen, second_seen = sorted(daemon.attach.connections(), key=lambda it: it.number)
    assert (first_seen.agent, first_seen.peer.pid) == ("test", os.getpid())
    assert second_seen.number > first_seen.number
    second.sock.close()
    wait_until(lambda: daemon.attach.connections() == [first_seen], "the session goes on")


def test_the_answer_to_a_hello_names_protocol_boot_and_session(daemon: Daemon) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(daemon.config.runtime_dir / "attach.sock"))
        sock.sendall(encode({"op": "hello", "protocol": PROTOCOL_VERSION, "agent": "test"}))
        (greeting,) = Decoder().feed(sock.recv(65536))
        (connection,) = daemon.attach.connections()
    assert greeting == {"protocol": PROTOCOL_VERSION, "boot": daemon.boot, "session": connection.number}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"op": "hello", "protocol": PROTOCOL_VERSION, "agent": "again"}, "hello comes once"),
        ({"op": "sing"}, "unknown op 'sing'"),
    ],
)
def test_a_message_out_of_order_ends_its_session_with_the_reason(
    daemon: Daemon, client: Callable[[Daemon], Raw], message: dict[str, Any], said: str
) -> None:
    raw, other = client(daemon), client(daemon)
    error = raw.ask(message)["error"]
    assert error["code"] == "bad_message"
    assert said in error["message"]
    assert ended(raw)
    assert other.ask({"op": "close", "id": 1, "lease": 99}) == {"id": 1, "closed": 99}


def test_a_session_beyond_the_limit_is_told_the_remedy(
    serve: Callable[..., Daemon], client: Callable[[Daemon], Raw]
) -> None:
    daemon = serve(max_sessions=1)
    client(daemon)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(daemon.config.runtime_dir / "attach.sock"))
        (refusal,) = Decoder().feed(sock.recv(65536))
    assert refusal["error"]["code"] == "capacity"
    assert "serves 1 sessions at once" in refusal["error"]["message"]
    assert "raise max_sessions" in refusal["error"]["message"]
    assert daemon.store.counters["sessions_refused"] == 1


def test_a_lease_that_is_lost_is_told_to_its_session_and_to_no_other(
    daemon: Daemon, client: Callable[[Daemon], Raw], checkpoint: Callable[..., Path]
) -> None:
    holder, other = client(daemon), client(daemon)
    granted = holder.ask({"op": "open", "id": 1, "path": str(checkpoint("m"))})
    daemon.attach.run(lambda: daemon.store.device_leases.lost(CPU))
    told = holder.next()
    assert (told["event"], told["lease"]) == ("lost", granted["lease"])
    assert other.ask({"op": "close", "id": 2, "lease": 5}) == {"id": 2, "closed": 5}


def test_work_is_done_in_the_doors_thread_and_a_failure_leaves_the_door_open(
    daemon: Daemon, client: Callable[[Daemon], Raw], caplog: pytest.LogCaptureFixture
) -> None:
    threads: queue.Queue[str] = queue.Queue()

    def fails() -> None:
        raise ZeroDivisionError("surprise")

    daemon.attach.run(fails)
    daemon.attach.run(lambda: threads.put(threading.current_thread().name))
    assert threads.get(timeout=20) == "trims-attach-door"
    assert "what was to be done in the door's thread failed" in caplog.text
    assert client(daemon).ask({"op": "close", "id": 1, "lease": 9})["closed"] == 9


def test_the_end_of_the_door_ends_all_sessions_and_removes_the_socket(
    serve: Callable[..., Daemon], client: Callable[[Daemon], Raw]
) -> None:
    daemon = serve()
    raw = client(daemon)
    daemon.ask_to_end()
    daemon.stop()
    assert ended(raw)
    assert not (daemon.config.runtime_dir / "attach.sock").exists()


def test_the_socket_has_the_permissions_of_the_settings(serve: Callable[..., Daemon]) -> None:
    daemon = serve(socket_mode="660")
    assert (daemon.config.runtime_dir / "attach.sock").stat().st_mode & 0o777 == 0o660
