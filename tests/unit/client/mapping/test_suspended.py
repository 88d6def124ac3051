"""Suspended weights, in processes beside the daemon: their memory can be freed, and they know if it is theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from trims.control import admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

#: Does what each line of its input says, and answers with a line.
CLIENT = """
import sys
import trims
from trims_client.mapping.suspended import Suspended, image_of, open_resident, still_current
session = trims.connect(sys.argv[1], upgrade=False)
weights = session.open("m")
view = weights["x"]
for line in sys.stdin:
    try:
        print(eval(line) if line[0] != "!" else exec(line[1:]), flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}".replace(chr(10), " "), flush=True)
"""


class Client:
    """A process that has opened the model `m`."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, os.fspath(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture
def client(daemon: Daemon, checkpoint: Callable[..., Path]) -> Iterator[Client]:
    add(daemon, checkpoint, 1.0)
    made = Client(daemon.config.runtime_dir)
    yield made
    made.end()


def add(daemon: Daemon, checkpoint: Callable[..., Path], value: float, nbytes: int = 4096) -> None:
    path = checkpoint(f"m{value}", {"x": np.full(nbytes // 4, value, "f4")})
    with admin(daemon.config.runtime_dir) as control:
        control.add({"name": "m", "artifact": {"path": str(path)}}, replace=True)
        control.load("m", "cpu")


def leases(daemon: Daemon) -> int:
    with admin(daemon.config.runtime_dir) as control:
        return control.status().stats.leases


def test_parked_weights_have_no_lease_and_read_the_same_once_they_wake(daemon: Daemon, client: Client) -> None:
    assert client.do("float(view.sum())") == "1024.0"
    client.do("!parked = Suspended(session, weights)")
    assert leases(daemon) == 0
    assert client.do("parked.wake()") == "True"
    assert leases(daemon) == 1
    assert client.do("float(view.sum())") == "1024.0"
    client.do("!del view; weights.close()")
    assert leases(daemon) == 0


def test_memory_of_parked_weights_is_freed_and_they_do_not_wake_in_other_memory(daemon: Daemon, client: Client) -> None:
    client.do("!parked = Suspended(session, weights)")
    with admin(daemon.config.runtime_dir) as control:
        control.evict("m", "cpu")
    pid = client.do("__import__('os').getpid()")
    with open(f"/proc/{pid}/maps") as maps:
        assert "/dev/shm/" not in maps.read()
    assert client.do("parked.wake()") == "False"
    assert client.do("float(session.open('m')['x'].sum())") == "1024.0"


def test_parked_weights_do_not_wake_once_their_model_is_another_one(
    daemon: Daemon, client: Client, checkpoint: Callable[..., Path]
) -> None:
    client.do("!parked = Suspended(session, weights)")
    add(daemon, checkpoint, 2.0)
    assert client.do("parked.wake()") == "False"
    assert client.do("float(session.open('m')['x'].sum())") == "2048.0"
    assert leases(daemon) == 1


def test_open_weights_tell_whether_their_name_still_stands_for_them(
    daemon: Daemon, client: Client, checkpoint: Callable[..., Path]
) -> None:
    assert client.do("still_current(session, weights)") == "True"
    add(daemon, checkpoint, 2.0)
    assert client.do("still_current(session, weights)") == "False"
    assert client.do("float(view.sum())") == "1024.0"


def test_an_image_is_opened_by_its_key_only_where_it_is_resident(daemon: Daemon, client: Client) -> None:
    assert client.do("open_resident(session, 'm', *image_of(weights)).close()") == "None"
    client.do("!found = image_of(weights); parked = Suspended(session, weights)")
    with admin(daemon.config.runtime_dir) as control:
        control.evict("m", "cpu")
    assert client.do("open_resident(session, 'm', *found)").startswith("ModelNotFoundError")


def test_parked_weights_wake_at_a_daemon_that_was_started_again(
    daemon: Daemon, client: Client, serve: Callable[..., Daemon]
) -> None:
    client.do("!parked = Suspended(session, weights)")
    daemon.stop()
    again = serve()
    assert client.do("parked.wake(10)") == "True"
    assert client.do("float(view.sum())") == "1024.0"
    assert leases(again) == 1


def test_weights_that_the_process_shares_cannot_be_parked(client: Client) -> None:
    assert client.do("!twice = session.open('m')") == "None"
    assert client.do("Suspended(session, weights)").startswith("NotSupportedError: 'm' at cpu cannot be parked")
    assert client.do("float(view.sum())") == "1024.0"
