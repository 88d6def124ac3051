"""The process that moves bytes, spoken to over its socket."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.file_server import file_server
from trims.process import messages
from trims.process.child import Child, Ties
from trims.process.python import run_ours
from trims.sources.process.fetcher import FetchSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = os.urandom(5_000_000)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    ties = Ties()
    settings = json.dumps(asdict(FetchSettings(str(tmp_path / "downloads"), patience_s=0.5)))
    made = Child(run_ours("trims.sources.process.child", *ties.arguments, settings), ties)
    made.socket.settimeout(60)
    yield made
    made.kill()
    made.wait()
    made.socket.close()


def order(child: Child, number: int, do: str, address: str = "http://127.0.0.1:1/m.bin", **more: Any) -> None:
    message = {"id": number, "do": do, "address": address, "shown": address, "named": True, **more}
    messages.send(child.socket, message, long=True)


def answer(child: Child) -> dict[str, Any]:
    """Return the next message that ends a job."""
    while True:
        received = messages.receive(child.socket, long_bytes=1 << 20)
        assert received is not None, "the process ended"
        if "done" in received[0] or "error" in received[0]:
            return dict(received[0])


def test_jobs_run_beside_each_other_and_each_answer_has_its_number(child: Child) -> None:
    with file_server() as server:
        slow = server.serve("/slow.bin", DATA, stall_after=1 << 20)
        server.serve("/m.bin", DATA)
        order(child, 1, "fetch", f"{server.url}/slow.bin")
        server.wait_for(1 << 20, "/slow.bin")
        order(child, 2, "fetch", f"{server.url}/m.bin")
        assert answer(child)["id"] == 2
        order(child, 1, "stop")
        stopped = answer(child)
        assert (stopped["id"], stopped["error"]["code"]) == (1, "lost_peer")
        slow.resume.set()
    order(child, 9, "stop")  # of a job that is over
    order(child, 3, "look")
    assert (answer(child)["error"]["code"]) == "source_unavailable"


def test_an_order_that_makes_no_sense_is_an_answer_and_no_end(child: Child) -> None:
    order(child, 1, "dance")
    assert answer(child)["error"]["code"] == "internal"
    order(child, 2, "look", "ftp://h/m")
    assert answer(child)["error"]["code"] == "bad_request"


def test_an_order_about_thousands_of_files_is_taken(child: Child) -> None:
    expected = {f"part-{number}": {"nbytes": 1, "checksums": {"sha256": "0" * 64}} for number in range(20_000)}
    order(child, 1, "fetch", expected=expected)
    assert answer(child)["error"]["code"] == "source_unavailable"


@pytest.mark.skipif(os.geteuid() == 0 and not hasattr(resource, "prlimit"), reason="limits cannot be set")
def test_a_file_that_may_not_be_so_long_is_no_space_with_the_room(child: Child) -> None:
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with file_server() as server:
        server.serve("/m.bin", DATA)
        order(child, 1, "fetch", f"{server.url}/m.bin")
        error = answer(child)["error"]
    assert error["code"] == "no_space"
    assert error["room_bytes"]


def test_it_ends_with_its_daemon(child: Child) -> None:
    order(child, 1, "look")
    answer(child)
    child.socket.shutdown(2)
    ended = threading.Thread(target=child.wait)
    ended.start()
    ended.join(30)
    assert not ended.is_alive()
    assert child.status is not None


def test_ctrl_c_in_the_daemons_terminal_is_the_daemons_business(child: Child) -> None:
    order(child, 1, "look")
    answer(child)
    os.kill(child.pid, signal.SIGINT)
    order(child, 2, "look")
    assert answer(child)["id"] == 2
