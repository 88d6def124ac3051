"""Load of benchmarks on a daemon: books without a daemon, work beside, raw clients, altered daemons."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from trims_bench.beside import Beside
from trims_bench.child import ChildError, started
from trims_bench.daemon import DaemonProcess
from trims_bench.raw import HELLO, RawClient
from trims_bench.scenarios.books import POLICIES, CrowdedBooks, DrivenBooks

from trims.core.place import CPU
from trims.core.residency.events import Free
from trims.memory import shm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from raw_door import Door


@pytest.mark.parametrize("policy", POLICIES)
def test_an_open_that_evicts_leaves_as_many_idle_as_before(policy: str) -> None:
    books = DrivenBooks(5, policy)
    for _ in range(7):
        evicting, whole = books.open_that_evicts()
        assert 0 < evicting < whole
    books.residency.validate()
    assert len(books.residency.replicas) == 5
    assert not books.residency.leases.by_number


def crowd(*, one_image: bool) -> CrowdedBooks:
    return CrowdedBooks(shared=20, sole=3, sessions=4, leases=10, waiters=6, one_image=one_image)


def test_a_crowd_reads_everything_and_waits_in_line() -> None:
    for one_image, queued in ((False, 6), (True, 1)):
        books = crowd(one_image=one_image)
        assert len(books.residency.leases.by_number) == 4 * 10 + 3
        assert len(books.residency.waiters.by_ticket) == 6
        assert len(books.residency.replicas) == 23 + queued
        books.residency.validate()


def test_a_last_close_gives_its_room_to_the_first_in_line() -> None:
    books = crowd(one_image=False)
    _, instructions = books.close(books.sole.popleft())
    assert [type(each) for each in instructions].count(Free) == 1
    books.carry_out(instructions)
    assert len(books.residency.waiters.by_ticket) == 5
    assert len(books.sole) == 3
    books.residency.validate()


def test_a_last_close_is_too_little_for_an_image_that_needs_the_whole_place() -> None:
    books = crowd(one_image=True)
    lease = books.sole.popleft()
    assert not [each for each in books.close(lease)[1] if isinstance(each, Free)]
    assert books.residency.find(lease.key, CPU) is not None
    books.residency.validate()


def test_work_beside_goes_on_until_the_block_ends() -> None:
    done = threading.Event()
    with Beside(lambda _: done.set()) as beside:
        assert done.wait(10)
    assert beside.rounds >= 1
    assert beside.longest_s > 0


def test_work_beside_that_fails_is_told_at_the_end_of_the_block() -> None:
    def fail(_: threading.Event) -> None:
        raise ZeroDivisionError("in the thread")

    with pytest.raises(ZeroDivisionError, match="in the thread"), Beside(fail):
        pass


def goes_on(word: str) -> Iterator[Any]:
    yield [word]
    yield {"then": word}


def fails(word: str) -> Iterator[Any]:
    yield word
    raise ValueError(f"after {word}")


def of_this_file(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Children import this file by its name, which pytest does not need to."""
    monkeypatch.setenv("PYTHONPATH", str(folder))
    for function in (goes_on, fails):
        monkeypatch.setattr(function, "__module__", "test_load")


def test_a_child_goes_on_until_it_is_told_to_end(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    of_this_file(monkeypatch, request.path.parent)
    with started(goes_on, {"word": "x"}) as child:
        assert child.result() == ["x"]
        assert child.end() == {"then": "x"}


def test_a_child_that_fails_later_says_what_failed(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    of_this_file(monkeypatch, request.path.parent)
    with started(fails, {"word": "x"}) as child:
        assert child.result() == "x"
        with pytest.raises(ChildError, match="ValueError: after x"):
            child.end()


def test_a_raw_client_sends_many_at_once_and_hears_the_answers(door: Door) -> None:
    def script(peer: Any) -> None:
        assert [peer.hear()["op"] for _ in range(3)] == ["hello", "open", "open"]
        peer.say({"protocol": 1, "boot": "b", "session": 1})
        peer.say({"id": 1, "lease": 7}, 0)

    door.serves(script)
    with RawClient(door.path) as client:
        client.send(HELLO, {"op": "open", "id": 1, "model": "m"}, {"op": "open", "id": 2, "model": "m"})
        assert client.answer() == {"id": 1, "lease": 7}
        with pytest.raises(ConnectionError, match="hung up"):
            client.answer()


def test_what_a_killed_daemon_left_goes_with_the_block(folder: Path) -> None:
    with DaemonProcess(folder / "state", cpu_capacity_bytes="1MiB") as daemon:
        first = daemon.pid
        daemon.kill()
        assert daemon.begin() == daemon.began_ns
        daemon.await_health()
        assert daemon.pid != first
        assert daemon.cpu_ns > 0
        (shm.SHM_FOLDER / f"{prefix(daemon)}.filling.x").touch()
        daemon.kill()
    assert daemon.left_behind() == []


def prefix(daemon: DaemonProcess) -> str:
    from trims.daemon.main import shm_prefix

    return shm_prefix(daemon.state_dir)


def altered(*arguments: str) -> str:
    command = [sys.executable, "-m", "trims_bench.altered", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_an_altered_daemon_is_trims_all_the_same() -> None:
    assert altered("--files", "256", "--slow-file", "/nowhere", "--", "--version").startswith("trims ")
