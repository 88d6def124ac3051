"""Transfers whose daemon, process or network goes at any moment: the model opens afterwards, and little comes twice."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from dying_daemon import TRANSFER_MOMENTS
from file_server import FileServer, file_server
from looking import WAIT_S, wait_until
from safetensors.numpy import save
from trims_client import connect

from trims.control import admin
from trims.core.errors import TrimsError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

MIB = 1 << 20
WEIGHT = np.random.default_rng(3).random(3 * MIB)
#: 24 MiB and a header.
DATA = save({"weight": WEIGHT})
PATH = "/m.safetensors"
ROOM = ("cpu_capacity_bytes=67108864", "disk_capacity_bytes=67108864")
#: By name: bytes that a server has sent when the process is killed, and the most that is fetched afterwards, as a share
#: of all: what sockets hold, and the piece before, may be lost.
SENT = {
    "while it looks": (1, 1.0),
    "at the first bytes": (MIB, 1.0),
    "in the middle": (12 * MIB, 0.8),
    "at the last piece": (23 * MIB, 0.7),
    "while it verifies": (len(DATA), 0.7),
}


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as made:
        made.serve(PATH, DATA, bytes_per_s=12e6)
        yield made


def reads_true(folder: Path, name: str = "m") -> None:
    with connect(folder / "run") as session, session.open(name) as weights:
        np.testing.assert_array_equal(weights["weight"], WEIGHT)


def ask(folder: Path, uri: str, process: subprocess.Popen[bytes]) -> None:
    """Register an address and open it; the daemon dies under it. Its door may not answer at first."""
    wait_until((folder / "run" / "control.sock").exists, "the control door, which opens last, is not there")
    while process.poll() is None:
        with contextlib.suppress(TrimsError):
            with admin(folder / "run") as daemon:
                if not daemon.models():
                    daemon.add(uri, name="m", lazy=True)
            with connect(folder / "run") as session:
                session.open("m").close()
            return
        time.sleep(0.01)


def only_the_file_is_left(daemon: Daemon) -> None:
    downloads = daemon.config.state_dir / "downloads"
    left = [
        path for path in downloads.rglob("*") if path.is_file() and path.suffix != ".lock" and path.name != "address"
    ]
    assert [path.name for path in left] == ["m.safetensors"]
    state = {path.name for path in daemon.config.state_dir.iterdir() if "trims.lock" in path.name}
    assert state == {"trims.lock"}


# fault (sources): the daemon or the fetching process is killed in a transfer -> `lost_peer` or nothing; the next one
# goes on
@pytest.mark.parametrize("moment", [*SENT, *TRANSFER_MOMENTS])
def test_a_daemon_that_is_killed_in_a_transfer_is_followed_by_one_that_goes_on(
    moment: str,
    folder: Path,
    server: FileServer,
    serve: Callable[..., Daemon],
    start_process: Callable[..., subprocess.Popen[bytes]],
) -> None:
    process = start_process(moment if moment in TRANSFER_MOMENTS else "", *ROOM)
    asking = threading.Thread(target=ask, args=(folder, server.url + PATH, process))
    asking.start()
    if moment in SENT:
        server.wait_for(SENT[moment][0], PATH)
        process.kill()
    assert process.wait(60) == -signal.SIGKILL, "the moment never came"
    asking.join(60)
    server.files[PATH].bytes_per_s = None

    daemon = serve()
    reads_true(folder)
    share = SENT[moment][1] if moment in SENT else 1.0 if "asks" in moment else 0.0
    assert daemon.sources.fetcher.counts().get("transferred_bytes", 0) <= share * len(DATA)
    only_the_file_is_left(daemon)
    entry = daemon.sources.remote.seen(server.url + PATH)
    assert entry is not None
    assert "blake3" in entry["files"][0]["found"]


# fault (sources): the daemon or the fetching process is killed in a transfer
@pytest.mark.parametrize("moment", list(SENT))
def test_a_process_that_is_killed_in_a_transfer_is_followed_by_one_that_goes_on(
    moment: str, folder: Path, server: FileServer, serve: Callable[..., Daemon]
) -> None:
    daemon = serve()
    daemon.registry.put({"name": "m", "artifact": {"uri": server.url + PATH}}, "")
    pending = daemon.store.load("m", None)
    server.wait_for(SENT[moment][0], PATH)
    pid = daemon.sources.fetcher.pid
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    server.files[PATH].bytes_per_s = None
    pending.result(WAIT_S)
    reads_true(folder)
    assert daemon.sources.fetcher.counts()["transferred_bytes"] <= 1.5 * len(DATA)
    only_the_file_is_left(daemon)


# fault (sources): the network is gone for minutes -> `trims ps` says what waits; it goes on afterwards
def test_a_network_that_is_gone_for_a_while_is_shown_and_then_gone_on_with(
    folder: Path, serve: Callable[..., Daemon]
) -> None:
    daemon = serve(fetch_patience_s=300)
    with file_server() as first:
        first.serve("/known.safetensors", DATA)
        first.serve(PATH, DATA, stall_after=2 * MIB)
        for name in ("known", "m"):
            daemon.registry.put({"name": name, "artifact": {"uri": f"{first.url}/{name}.safetensors"}}, "")
        reads_true(folder, "known")
        pending = daemon.store.load("m", None)
        first.wait_for(2 * MIB, PATH)
        port = first.port

    with admin(folder / "run") as control:

        def troubles() -> list[str]:
            return [each.trouble for each in control.transfers() if each.what == "fetch"]

        wait_until(lambda: any(troubles()), "nothing says that the network is gone")
        assert all("127.0.0.1" in each for each in troubles())
        assert [each.bytes_per_s for each in control.transfers()] == [0.0]
        reads_true(folder, "known")

        with file_server(port) as second:
            second.serve(PATH, DATA)
            pending.result(WAIT_S)
            reads_true(folder)
            assert second.sent[PATH] <= len(DATA)
            assert all(path == PATH for _, path, _ in second.requests)
        assert control.transfers() == []
    assert daemon.sources.fetcher.counts()["transferred_bytes"] <= 2 * len(DATA) + 9 * MIB
