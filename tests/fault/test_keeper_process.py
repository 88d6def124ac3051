"""A keeper as a process: found, started, given orders, killed; and daemons that die around it."""

# fault (gpus): a device is lost under a mover or a hanging copy

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import blake3
import pytest
from looking import wait_until

from trims.core.errors import (
    BadMessageError,
    CallerError,
    CudaError,
    DaemonAwayError,
    DeviceLostError,
    NotSupportedError,
)
from trims.keeper import server
from trims.keeper.client import KeeperConnection, Kept
from trims.keeper.keeper import Keeper
from trims.keeper.launch import find_keeper
from trims.keeper.server import KeeperServer
from trims.memory.cuda.api import Device
from trims.process.python import run_module
from trims.testing.device_borrower import Borrower
from trims.testing.fake_cuda import CONTEXT_BYTES, FakeCuda, copies_held, lose_device, make_devices
from trims.testing.tiers import an_image
from trims.wire.answers import raise_if_error
from trims.wire.frames import Decoder, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

UUID = "GPU-00000000-0000-0000-0000-000000000001"
KEY = "a" * 64
TOTAL = 256 << 20


@pytest.fixture
def kind(folder: Path) -> str:
    return make_devices(folder, [Device(UUID, "Fake", TOTAL)])


@pytest.fixture
def path(folder: Path, kind: str) -> Iterator[Path]:
    """A keeper that serves; it has ended after the test, with nothing left on the device."""
    found = find_keeper(folder, UUID, cuda=kind, idle_s=0.0)
    yield found
    with contextlib.suppress(DaemonAwayError), KeeperConnection(found) as keeper:
        pid = keeper.hello().pid
        keeper.end()
        await_end(pid)
    cuda = FakeCuda(str(folder))
    cuda.use(UUID)
    assert cuda.memory()[0] == TOTAL - CONTEXT_BYTES, "only this watcher's context is there"
    cuda.leave()


def await_end(pid: int) -> None:
    """Wait until the process is gone; it is not a child of this process."""
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        assert poller.poll(20_000), "the keeper did not end"
        os.close(fd)


@pytest.fixture
def image() -> Iterator[tuple[int, bytes]]:
    data = an_image(20 << 20)
    fd = os.memfd_create("image")
    os.write(fd, data)
    yield fd, data
    os.close(fd)


def put(keeper: KeeperConnection, image: tuple[int, bytes]) -> int:
    fd, data = image
    number = keeper.create(len(data))
    keeper.fill(number, fd)
    keeper.seal(number, KEY, blake3.blake3(data).hexdigest())
    return number


def test_orders_travel_with_descriptors_and_progress(path: Path, image: tuple[int, bytes], kind: str) -> None:
    fd, data = image
    with KeeperConnection(path) as keeper:
        number = keeper.create(len(data))
        progress: list[int] = []
        keeper.fill(number, fd, progress.append)
        assert progress[-1] == len(data)
        digest = blake3.blake3(data).hexdigest()
        keeper.seal(number, KEY, digest)
        assert keeper.hello().images == [Kept(number, KEY, digest, len(data))]
        assert keeper.digest(number) == digest
        back = os.memfd_create("back")
        os.ftruncate(back, len(data))
        keeper.read(number, back)
        assert os.pread(back, len(data), 0) == data
        os.close(back)
        exported, head_fd = keeper.export(number)
        os.close(head_fd)
        with Borrower(kind, UUID, exported.driver) as borrower:
            borrower.open(exported)
            assert borrower.read(len(data) - 4, 4) == data[-4:]
            borrower.close()
        keeper.free(number)
        assert keeper.hello().images == []


def test_the_keeper_that_serves_is_found_again(path: Path, folder: Path, kind: str) -> None:
    with KeeperConnection(path) as keeper:
        pid = keeper.hello().pid
        assert find_keeper(folder, UUID, cuda=kind) == path
        assert keeper.hello().pid == pid


def test_what_was_sealed_outlives_the_connection_and_what_was_not_does_not(
    path: Path, image: tuple[int, bytes], folder: Path
) -> None:
    with KeeperConnection(path) as keeper:
        sealed = put(keeper, image)
        free = keeper.room()[0]
        keeper.create(40 << 20)
        assert keeper.room()[0] < free
    with KeeperConnection(path) as keeper:
        wait_until(lambda: keeper.room()[0] >= free, "the draft was not freed")  # more, once its mover rests
        assert [kept.image for kept in keeper.hello().images] == [sealed]


def test_a_borrower_reads_on_when_the_keeper_is_killed_and_the_next_one_starts_empty(
    path: Path, image: tuple[int, bytes], folder: Path, kind: str
) -> None:
    _, data = image
    with KeeperConnection(path) as keeper, Borrower(kind, UUID, "vmm") as borrower:
        exported, head_fd = keeper.export(put(keeper, image))
        os.close(head_fd)
        borrower.open(exported)
        pid = keeper.hello().pid
        os.kill(pid, signal.SIGKILL)
        await_end(pid)
        with pytest.raises(DeviceLostError, match="is gone"):
            keeper.hello()
        assert borrower.read(len(data) - 4, 4) == data[-4:]
        with KeeperConnection(find_keeper(folder, UUID, cuda=kind, idle_s=0.0)) as heir:
            assert heir.hello().images == []
            assert heir.hello().pid != pid
        borrower.close()


def test_a_keeper_that_cannot_start_says_why(folder: Path, kind: str) -> None:
    with pytest.raises(NotSupportedError, match="GPU-missing is not visible"):
        find_keeper(folder, "GPU-missing", cuda=kind)
    with pytest.raises(NotSupportedError, match="holds no fake devices"):
        find_keeper(folder, UUID, cuda="fake:/nowhere")


@pytest.mark.parametrize(
    ("order", "error"),
    [
        ({"op": "dance"}, BadMessageError),
        ({"op": "create", "nbytes": "much"}, BadMessageError),
        ({"op": "create", "nbytes": 0}, CallerError),
        ({"op": "fill", "image": 1}, BadMessageError),
        ({"op": "export", "image": 77}, CallerError),
        ({}, BadMessageError),
    ],
)
def test_an_order_that_makes_no_sense_is_an_error_and_the_keeper_goes_on(
    path: Path, order: dict[str, object], error: type[Exception]
) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        for message in (order, {"op": "room"}):
            sock.sendall(encode(message))
            (answer,) = Decoder().feed(sock.recv(65536))
            if message is order:
                with pytest.raises(error):
                    raise_if_error(answer)
            else:
                assert answer["total_bytes"] == TOTAL


def test_bytes_that_are_no_frame_end_their_connection_only(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        sock.sendall(b"\xff" * 100)
        assert sock.recv(65536) == b""
    with KeeperConnection(path) as keeper:
        assert keeper.hello().device == UUID


@pytest.mark.parametrize("order", ["hello", "room", "create", "export", "free", "fill"])
def test_a_keeper_that_does_not_answer_is_a_lost_device(folder: Path, image: tuple[int, bytes], order: str) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(folder / "deaf.sock"))
        deaf.listen()
        given = {"create": (4096,), "export": (1,), "free": (1,), "fill": (1, image[0])}.get(order, ())
        with KeeperConnection(folder / "deaf.sock", answer_s=0.05, progress_s=0.05) as keeper:
            with pytest.raises(DeviceLostError, match=r"did not answer within 0\.05 s"):
                getattr(keeper, order)(*given)
            with pytest.raises(DeviceLostError, match="is gone"):
                keeper.hello()


def test_a_keeper_whose_device_is_lost_during_a_hung_copy_ends_and_hangs_up(
    folder: Path, kind: str, image: tuple[int, bytes]
) -> None:
    path, ended = folder / "hanging.sock", threading.Event()
    command = run_module("trims.keeper.main", "--socket", str(path), "--device", UUID, "--cuda", kind)
    with copies_held(folder), subprocess.Popen(command) as process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)  # a test that fails does not wait for the copy that hangs
        wait_until(lambda: _accepts(path), "the keeper did not come up")
        with KeeperConnection(path) as lifeline, KeeperConnection(path) as filler, KeeperConnection(path) as other:
            number = filler.create(len(image[1]))

            def fill() -> None:
                with pytest.raises(DeviceLostError):
                    filler.fill(number, image[0], lambda _: copying.set())
                ended.set()

            copying, filling = threading.Event(), threading.Thread(target=fill)
            filling.start()
            assert copying.wait(30)
            lose_device(folder, UUID)
            with pytest.raises(DeviceLostError):  # which says so, or hangs up first
                other.create(4096)
            lifeline.wait_for_end()
            filling.join()
            assert ended.is_set()
        assert process.wait(30) == 1
    (folder / f"lost.{UUID}").unlink()


def _accepts(path: Path) -> bool:
    try:
        KeeperConnection(path).close()
    except DaemonAwayError:
        return False
    return True


def test_what_fails_at_the_door_or_at_rest_does_not_end_the_keeper(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No descriptor for another connection, a driver that refuses, a path that cannot be checked: all that passes."""
    monkeypatch.setattr(server, "_TICK_S", 0.01)
    keeper, path = Keeper(FakeCuda(kind.partition(":")[2]), UUID, "vmm", idle_s=0.0), folder / "here.sock"
    serving = KeeperServer(keeper, path)
    accept, rest, stat = socket.socket.accept, keeper.rest, type(path).stat
    failed: set[str] = set()

    def once(name: str, error: Exception, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if name not in failed:
            failed.add(name)
            raise error
        return method(*given, **named)

    monkeypatch.setattr(
        socket.socket, "accept", lambda self: once("accept", OSError(24, "Too many open files"), accept, self)
    )
    monkeypatch.setattr(keeper, "rest", lambda: once("rest", CudaError("refused"), rest))
    thread = threading.Thread(target=serving.serve)
    thread.start()
    wait_until(lambda: _accepts(path), "the keeper did not come up")
    monkeypatch.setattr(
        type(path), "stat", lambda self, **named: once("stat", PermissionError(13, "no"), stat, self, **named)
    )
    wait_until(lambda: failed == {"accept", "rest", "stat"}, "not everything has failed")
    with KeeperConnection(path) as connection:
        assert connection.hello().device == UUID
    serving.end()
    thread.join()
    for said in ("Too many open files", "refused", "cannot be checked"):
        assert said in caplog.text


def test_a_draft_that_cannot_be_freed_because_its_device_is_lost_ends_the_keeper(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(FakeCuda(kind.partition(":")[2]), UUID, "vmm", idle_s=0.0)
    serving, path = KeeperServer(keeper, folder / "here.sock"), folder / "here.sock"
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(serving.serve()))
    thread.start()
    wait_until(lambda: _accepts(path), "the keeper did not come up")
    draft = KeeperConnection(path)
    number = draft.create(4096)
    lose_device(folder, UUID)
    draft.close()  # the draft is freed, and no connection is left to report that to
    thread.join(20)
    assert found == [False]
    (folder / f"lost.{UUID}").unlink()
    assert [held.number for held in keeper.held()] == [number]
    keeper.close()


# fault (gpus): the runtime folder or a keeper's socket is removed -> `device_lost` for new requests; a keeper that
# none can reach ends
def test_a_keeper_that_cannot_be_reached_any_more_ends(path: Path) -> None:
    """A keeper whose daemon was killed and whose folder was removed must not hold the device's memory for ever."""
    with KeeperConnection(path) as keeper:
        pid = keeper.hello().pid
        path.unlink()
        assert keeper.hello().pid == pid, "it serves who is connected"
    await_end(pid)
