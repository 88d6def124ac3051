"""The daemon's side of a keeper: answers in order, errors that name the keeper, and no descriptor kept."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from keepers import DIGEST, KEY, TOTAL, UUID, Served

from trims.core.errors import BadMessageError, CallerError, CapacityError, DaemonAwayError, DeviceLostError
from trims.keeper.client import KeeperConnection, Kept
from trims.testing.descriptors import few_descriptors
from trims.trace import spans
from trims.trace.reader import read_traces
from trims.wire.frames import encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_hello_tells_the_device_and_all_images_however_many(
    served: Served, image: Callable[..., tuple[int, bytes]]
) -> None:
    fd, data = image(4096)
    with KeeperConnection(served.path) as connection:
        first = connection.hello()
        assert (first.pid, first.device, first.driver, first.images) == (os.getpid(), UUID, "vmm", [])
        wanted = []
        for number in range(20):
            made = connection.create(len(data))
            connection.fill(made, fd)
            connection.seal(made, f"{number:064}", DIGEST)
            wanted.append(Kept(made, f"{number:064}", DIGEST, len(data)))
        assert connection.hello().images == wanted


def test_an_image_is_filled_read_back_hashed_and_freed(served: Served, image: Callable[..., tuple[int, bytes]]) -> None:
    fd, data = image()
    told: list[int] = []
    back = os.memfd_create("back")
    os.ftruncate(back, len(data))
    with KeeperConnection(served.path) as connection:
        free, total = connection.room()
        assert (total, free <= total) == (TOTAL, True)
        number = connection.create(len(data))
        connection.fill(number, fd, told.append)
        connection.seal(number, KEY, DIGEST)
        connection.read(number, back, told.append)
        assert os.pread(back, len(data), 0) == data
        assert told.count(len(data)) == 2
        exported, head_fd = connection.export(number)
        exported.close()
        os.close(head_fd)
        connection.free(number)
        connection.free(number)
        assert connection.hello().images == []
        with pytest.raises(CallerError, match=f"no image {number}"):
            connection.digest(number)
    os.close(back)


def test_where_no_keeper_serves_the_socket_is_named(folder: Path) -> None:
    with pytest.raises(DaemonAwayError, match=f"no keeper serves at {folder}/k.sock: No such file"):
        KeeperConnection(folder / "k.sock")


def test_a_lack_of_descriptors_is_not_the_keepers_end(served: Served) -> None:
    with (
        few_descriptors(left=0),
        pytest.raises(CapacityError, match=f"no descriptor to reach the keeper at {served.path}"),
    ):
        KeeperConnection(served.path)


def test_waiting_for_the_end_is_over_when_another_thread_interrupts(served: Served) -> None:
    with KeeperConnection(served.path) as connection:
        assert connection.wait_for_end(0.0) is False
        found: list[bool] = []
        waiting = threading.Thread(target=lambda: found.append(connection.wait_for_end()))
        waiting.start()
        connection.interrupt()
        waiting.join(60)
        assert found == [True]
        with pytest.raises(DeviceLostError, match=f"the keeper at {served.path} is gone"):
            connection.hello()


class Scripted:
    """A keeper's socket at which every connection gets the same bytes and perhaps a descriptor."""

    def __init__(self, path: Path, answer: bytes, fds: list[int]) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.thread = threading.Thread(target=self._serve, args=(answer, fds))
        self.thread.start()

    def _serve(self, answer: bytes, fds: list[int]) -> None:
        connected, _ = self.listener.accept()
        with connected:
            connected.recv(65536)
            socket.send_fds(connected, [answer], fds)

    def end(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.listener.close()


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (b"\xff" * 8, BadMessageError, "claims 4294967295 bytes"),
        (encode({"error": "full"}), BadMessageError, "unreadable error"),
        (encode({"error": {"code": "capacity", "message": "full"}}), CapacityError, "^full$"),
        (b"", DeviceLostError, "is gone"),
    ],
)
def test_an_answer_that_is_no_answer_is_an_error_and_its_descriptors_are_closed(
    folder: Path, answer: bytes, error: type[Exception], words: str
) -> None:
    keeper = Scripted(folder / "k.sock", answer, [0] if answer else [])
    with KeeperConnection(folder / "k.sock") as connection, pytest.raises(error, match=words):
        connection.room()
    keeper.end()


def test_an_export_without_its_descriptors_is_a_lack_of_room_and_not_a_broken_keeper(folder: Path) -> None:
    keeper = Scripted(folder / "k.sock", encode({"driver": "vmm", "device": UUID, "nbytes": 1, "size_bytes": 1}), [])
    with (
        KeeperConnection(folder / "k.sock") as connection,
        pytest.raises(CapacityError, match="this process has too many open files"),
    ):
        connection.export(1)
    keeper.end()


def test_orders_are_parts_of_the_trace_that_they_name(
    served: Served, image: Callable[..., tuple[int, bytes]], tmp_path: Path
) -> None:
    fd, data = image(4096)
    spans.configure(tmp_path, "keeper")  # the keeper serves in this process
    try:
        with KeeperConnection(served.path) as connection:
            assert connection.hello().traces
        with KeeperConnection(served.path, traces=True) as connection:
            number = connection.create(len(data))  # of no trace
            with spans.continued(f"00-{'1' * 32}-{'2' * 16}-01"):
                connection.fill(number, fd)
            connection.room()  # of no trace; its answer comes when the span of what was asked before has ended
        with spans.continued(f"00-{'1' * 32}-{'2' * 16}-01"), KeeperConnection(served.path) as connection:
            connection.room()  # as to a keeper of an older version
    finally:
        spans.stop()
    (trace,) = read_traces(tmp_path)
    assert [(each.name, each.parent_id) for each in trace.spans] == [("keeper fill", "2" * 16)]
