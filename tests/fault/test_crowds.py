"""More clients than there are descriptors, clients that never pause, and a door that dies: the daemon stays of use."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from looking import WAIT_S, Asker, wait_until
from trims_client import connect

from trims.core.errors import CapacityError, LostPeerError, from_code
from trims.store.pending_requests import Granted
from trims.testing.control import control
from trims.wire import trims_pb2 as pb
from trims.wire.frames import Decoder, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

HELLO = encode({"op": "hello", "protocol": 1, "agent": "crowd"})


class Caller:
    """One client of a crowd: it says hello and hears the first answer."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(str(path))

    def first_answer(self) -> dict[str, object]:
        """The greeting, or why there is none."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # turned away: the reason lies in the socket
            self.sock.sendall(HELLO)
        decoder, messages = Decoder(), []
        while not messages:
            data = self.sock.recv(65536)
            assert data, "hung up on without a word"
            messages = decoder.feed(data)
        return messages[0]

    def close(self) -> None:
        self.sock.close()


def error_in(message: dict[str, object]) -> Exception | None:
    error = message.get("error")
    return None if error is None else from_code(error["code"], error["message"])  # type: ignore[index]


# fault (capacity): more clients than sessions or descriptors -> `capacity` with the remedy, within a second
def test_one_session_too_many_is_told_why(serve: Callable[..., Daemon]) -> None:
    daemon = serve(max_sessions=2)
    path = daemon.config.runtime_dir / "attach.sock"
    callers = [Caller(path) for _ in range(3)]
    first, second, third = [error_in(caller.first_answer()) for caller in callers]
    assert (first, second) == (None, None)
    assert isinstance(third, CapacityError)
    assert "2 sessions at once" in str(third)
    assert "max_sessions" in str(third)
    callers[0].close()
    wait_until(lambda: len(daemon.attach.connections()) == 1, "the session stays")
    again = Caller(path)
    assert error_in(again.first_answer()) is None
    for caller in (*callers, again):
        caller.close()


# fault (clients): sends a path of 4,000 wide characters, or thousands of messages -> a shortened error; connections
# take turns
def test_the_error_of_a_long_path_reaches_its_client_and_no_other(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    """Quoted twice in JSON, 4,000 characters of four bytes are more than a frame holds."""
    path = daemon.config.runtime_dir / "attach.sock"
    caller = Caller(path)
    assert error_in(caller.first_answer()) is None
    caller.sock.sendall(encode({"op": "open", "id": 1, "path": "/" + "\U0001f600" * 4000}))
    decoder, messages = Decoder(), []
    while not messages:
        messages = decoder.feed(caller.sock.recv(65536))
    assert "characters left out" in str(error_in(messages[0]))
    with connect(daemon.config.runtime_dir) as session:
        session.open_file(checkpoint("m")).close()
    caller.close()


def handled_in_order(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], threading.Event]:
    """Whose messages the door handles from now on, by number, in order; it stands still until the event is set."""
    order: list[int] = []
    real = daemon.attach._requests.handle

    def handle(connection: object, request: object) -> None:
        order.append(connection.number)  # type: ignore[attr-defined]
        real(connection, request)  # type: ignore[arg-type]

    monkeypatch.setattr(daemon.attach._requests, "handle", handle)
    entered, go_on = threading.Event(), threading.Event()
    daemon.attach.run(lambda: (entered.set(), go_on.wait(WAIT_S)))
    assert entered.wait(WAIT_S)
    return order, go_on


# fault (clients): sends a path of 4,000 wide characters, or thousands of messages
def test_connections_take_turns_however_much_one_of_them_has_sent(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = daemon.config.runtime_dir / "attach.sock"
    flooder, other = Caller(path), Caller(path)
    for caller in (flooder, other):
        assert error_in(caller.first_answer()) is None
    order, go_on = handled_in_order(daemon, monkeypatch)
    flooder.sock.sendall(encode({"op": "close", "lease": 1}) * 1000)
    other.sock.sendall(encode({"op": "close", "lease": 1, "id": 1}))
    go_on.set()
    wait_until(lambda: len(order) == 1001, "not all were handled")
    (single,) = [number for number in set(order) if order.count(number) == 1]
    assert order.index(single) < 20, "the other connection waited for the whole flood"
    for caller in (flooder, other):
        caller.close()


def test_all_that_several_flooding_connections_sent_is_handled_in_rounds(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, count = daemon.config.runtime_dir / "attach.sock", 300
    flooders = [Caller(path) for _ in range(3)]
    for caller in flooders:
        assert error_in(caller.first_answer()) is None
    order, go_on = handled_in_order(daemon, monkeypatch)
    for caller in flooders:
        caller.sock.sendall(encode({"op": "close", "lease": 1}) * count)
    go_on.set()
    wait_until(lambda: len(order) == len(flooders) * count, "not all were handled")
    first_done = min(max(at for at, number in enumerate(order) if number == each) for each in set(order))
    assert first_done > len(order) // 2, "one connection was served to its end before the others"
    for caller in flooders:
        caller.close()


def test_a_client_with_a_backlog_is_not_ended_for_the_frame_it_has_begun(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trims.daemon.attach_door.FRAME_TIMEOUT_S", 0.2)
    monkeypatch.setattr("trims.daemon.attach_door._ROUND_S", 0.01)
    path = daemon.config.runtime_dir / "attach.sock"
    flooders, last = [Caller(path) for _ in range(2)], encode({"op": "close", "lease": 1, "id": 9})
    for caller in flooders:
        assert error_in(caller.first_answer()) is None
    for caller in flooders:
        caller.sock.sendall(encode({"op": "close", "lease": 1}) * 600 + last)  # several reads; each ends inside a frame
    for caller in flooders:
        (answer,) = Decoder().feed(caller.sock.recv(65536))
        assert error_in(answer) is None
        assert answer["id"] == 9
        caller.close()


# fault (daemon): the attach door's thread dies -> the daemon ends with an error; mappings stay, the next daemon
# adopts
def test_a_door_that_dies_ends_the_daemon_and_says_so(
    serve: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = serve()

    def fails() -> None:
        raise RuntimeError("a bug in the loop")

    monkeypatch.setattr(daemon.attach, "_end_slow", fails)
    with contextlib.suppress(OSError, LostPeerError):
        connect(daemon.config.runtime_dir).close()
    wait_until(lambda: daemon.died is not None, "its death went unnoticed")
    assert str(daemon.died) == "a bug in the loop"
    daemon.wait()
    assert "the attach door has died" in caplog.text
    caplog.clear()


# -- a process with few descriptors --------------------------------------------------------------------------------

LIMIT = 300


@pytest.fixture
def poor(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`trims serve` that may have few files open."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRIMS_")}
    environment |= {"TRIMS_RUNTIME_DIR": str(folder / "run"), "TRIMS_STATE_DIR": str(folder / "state")}
    environment |= {
        "TRIMS_CPU_CAPACITY_BYTES": "64MiB",
        "TRIMS_GPUS": "none",
        "TRIMS_TRUST": "verified",
        "TRIMS_ENDPOINT": "no",
    }
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "trims.cli.main", "serve"],
            env=environment,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT)),
        )
        wait_until(lambda: (folder / "run" / "control.sock").exists(), "it did not start")
        try:
            yield process
            with control(str(folder / "run")) as door:
                door.Shutdown(pb.ShutdownRequest(purge=True), timeout=30)
            process.wait(30)
        finally:
            process.kill()
            process.wait()


def processor_s(process: subprocess.Popen[bytes]) -> float:
    with open(f"/proc/{process.pid}/stat") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_crowd_beyond_the_descriptors_is_served_or_told(
    poor: subprocess.Popen[bytes], folder: Path, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    with connect(folder / "run") as session:
        session.open_file(path).close()
        crowd = [Caller(folder / "run" / "attach.sock") for _ in range(2 * LIMIT)]
        outcomes = [error_in(caller.first_answer()) for caller in crowd]
        refused = [error for error in outcomes if error is not None]
        assert len(refused) > LIMIT
        assert {type(error) for error in refused} == {CapacityError}
        assert all("ulimit -n" in str(error) for error in refused)
        assert outcomes.count(None) >= 16
        session.open_file(path).close()
        before, written = processor_s(poor), os.path.getsize(folder / "log")
        time.sleep(0.5)
        assert processor_s(poor) - before < 0.45, "it is busy with nothing"
        assert os.path.getsize(folder / "log") - written < 20_000
    for caller in crowd:
        caller.close()
    with connect(folder / "run") as session:
        session.open_file(path).close()


# fault (capacity): more images than descriptors -> the idlest image is evicted; all read: `capacity` with the remedy
def test_images_beyond_the_descriptors_are_a_lack_of_capacity_with_the_remedy(
    poor: subprocess.Popen[bytes], folder: Path, checkpoint: Callable[..., Path]
) -> None:
    with connect(folder / "run") as session:
        held, errors = [], []
        for number in range(120):
            try:
                held.append(session.open_file(checkpoint(f"m{number}")))
            except CapacityError as error:
                errors.append(str(error))
        assert errors
        assert all("ulimit -n" in error for error in errors)
        assert len(held) >= 16
        for weights in held:
            weights.close()


# fault (orders): an image cannot be opened at a start, or memory not given back -> a line in the log; tried again
def test_a_restart_with_too_few_descriptors_removes_no_image(
    daemon: Daemon, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    from trims.core.place import DISK

    asker = Asker(daemon)
    for number in range(150):
        assert isinstance(asker.open(checkpoint(f"m{number}"), DISK), Granted)
    images = daemon.config.state_dir / "images"
    before = set(os.listdir(images))
    assert len(before) == 150
    daemon.ask_to_end()
    daemon.stop()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, hard))
    try:
        second = serve()
        assert set(os.listdir(images)) == before
        second.ask_to_end()
        second.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    third = serve()
    assert third.store.counters["adopted"] == 150
