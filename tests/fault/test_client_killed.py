"""Clients die between any two messages and while they read: their leases end with them, and no other client notices."""

# fault (clients): killed, crashed, stopped or ended at any moment, with or without views alive -> nothing, by others;
# no session, no lease

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from looking import wait_until
from trims_client import connect

from trims.core.replica import State
from trims.testing.tiers import SlowTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.core.place import Place
    from trims.daemon.main import Daemon

#: Steps of the client before it says `here` and stands still.
MOMENTS = {
    "connected, silent": "channel = Channel(path, 'victim')",
    "greeted": "channel = Channel(path, 'victim'); channel.notify({'op': 'close', 'lease': 1})",
    "inside a message": "channel = Channel(path, 'victim'); channel._sock.sendall(channel._unsent_hello[:-5])",
    "asked, not answered": "channel = Channel(path, 'victim'); channel.notify({'op': 'open', 'id': 1, 'path': model})",
    "mapped": "weights = connect(run).open_file(model); view = weights['weight']; view.sum()",
    "closed, view alive": "weights = connect(run).open_file(model); view = weights['weight']; weights.close()",
    "two leases": "s = connect(run); a = s.open_file(model); b = s.open_file(model)",
}
WAYS: dict[str, Callable[[subprocess.Popen[str]], None]] = {
    "SIGKILL": lambda process: process.kill(),
    "SIGTERM": lambda process: process.terminate(),
    "exit": lambda process: _say(process, "exit"),
    "os._exit": lambda process: _say(process, "_exit"),
    "segmentation fault": lambda process: process.send_signal(signal.SIGSEGV),
    "stopped, then killed": lambda process: (process.send_signal(signal.SIGSTOP), process.kill()),
}  # fmt: skip
SCRIPT = """
import os, sys
from trims_client import connect
from trims_client.connection.channel import Channel
run, model = sys.argv[1:]
path = run + "/attach.sock"
{moment}
print("here", flush=True)
how = sys.stdin.readline().strip()
os._exit(0) if how == "_exit" else sys.exit(0)
"""


def _say(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()


@pytest.fixture
def victim(daemon: Daemon) -> Iterator[Callable[[str, Path], subprocess.Popen[str]]]:
    """Start a client, wait until it stands at the moment."""
    running: list[subprocess.Popen[str]] = []

    def start(moment: str, model: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SCRIPT.format(moment=moment), str(daemon.config.runtime_dir), str(model)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("moment", list(MOMENTS))
def test_a_client_that_dies_holds_nothing_any_more(
    moment: str,
    way: str,
    daemon: Daemon,
    victim: Callable[[str, Path], subprocess.Popen[str]],
    checkpoint: Callable[..., Path],
) -> None:
    path = checkpoint("m")
    with connect(daemon.config.runtime_dir) as session, session.open_file(path) as weights:
        expected = float(weights["weight"].sum())
        process = victim(MOMENTS[moment], path)
        WAYS[way](process)
        process.wait(20)
        wait_until(lambda: len(daemon.attach.connections()) == 1, "the dead client's session lives on")
        wait_until(lambda: len(daemon.store.residency.leases.by_number) == 1, "the dead client's lease lives on")
        assert float(weights["weight"].sum()) == expected
        daemon.store.residency.validate()
    evicted = daemon.store.evict(f"file:{path}")
    assert evicted, "a replica without a lease can be evicted"


# fault (clients): stopped (SIGSTOP) while mapped -> nothing; its lease stays until it is killed
def test_a_stopped_client_keeps_its_lease_until_it_is_killed(
    daemon: Daemon, victim: Callable[[str, Path], subprocess.Popen[str]], checkpoint: Callable[..., Path]
) -> None:
    process = victim(MOMENTS["mapped"], checkpoint("m"))
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert len(daemon.store.residency.leases.by_number) == 1
    process.kill()
    process.wait(20)
    wait_until(lambda: not daemon.store.residency.leases.by_number, "the lease lives on")


# fault (clients): dies while its cold load runs -> nothing; the load is finished and kept
def test_a_load_whose_only_asker_died_is_finished_and_kept(
    daemon: Daemon, victim: Callable[[str, Path], subprocess.Popen[str]], checkpoint: Callable[..., Path], cpu: Place
) -> None:
    slow = daemon.store.tiers[cpu] = SlowTier(daemon.store.tiers[cpu])
    process = victim(MOMENTS["asked, not answered"], checkpoint("m"))
    assert slow.entered.wait(20)
    process.kill()
    process.wait(20)
    wait_until(lambda: not daemon.attach.connections(), "the dead client's session lives on")
    slow.go_on.set()
    wait_until(lambda: _sealed(daemon) == 1, "the load was not finished")
    assert not daemon.store.residency.leases.by_number


def _sealed(daemon: Daemon) -> int:
    return sum(replica.state is State.SEALED for replica in list(daemon.store.residency.replicas.values()))


@pytest.fixture
def cpu() -> Place:
    from trims.core.place import CPU

    return CPU
