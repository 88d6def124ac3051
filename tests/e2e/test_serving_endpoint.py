"""`trims serve` with the endpoint beside it: found by `trims status`, started again, and gone with its daemon."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from endpoints import is_gone
from looking import wait_until

from trims.wire.endpoint_file import read_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COMMAND = [sys.executable, "-m", "trims.cli.main"]
ANY_PORT = "--port 0 --grpc-port none"


class Serving:
    """A daemon's process, and what `trims status` says of its endpoint."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.run_dir = str(folder / "run")
        self._log = folder / "log"
        serve = [*COMMAND, "--runtime-dir", self.run_dir, "serve", "--state-dir", str(folder / "state")]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [*serve, "--gpus", "none", "--cpu-capacity-bytes", "1MiB", *flags], stderr=log
            )

    def stats(self) -> dict[str, Any]:
        """Empty until the daemon answers."""
        done = subprocess.run([*COMMAND, "--runtime-dir", self.run_dir, "status", "--json"], capture_output=True)
        return {} if done.returncode else json.loads(done.stdout)["stats"]

    def url(self) -> str:
        """Return the address at which the endpoint answers, once it does."""
        until = time.monotonic() + 120
        while not (found := self.stats().get("endpoint")):
            assert time.monotonic() < until, self._log.read_text()
            assert self.process.poll() is None, self._log.read_text()
        return str(found)

    def pid(self) -> int:
        found = read_address(self.run_dir)
        assert found is not None
        return found.pid


@pytest.fixture
def serve(folder: Path) -> Iterator[Callable[..., Serving]]:
    """Ended as a crash would end it, if the test has not done it."""
    made: list[Serving] = []

    def start(*flags: str) -> Serving:
        made.append(Serving(folder, *flags))
        return made[-1]

    yield start
    for each in made:
        found = read_address(each.run_dir)
        each.process.kill()
        each.process.wait()
        if found is not None:
            wait_until(lambda found=found: is_gone(found.pid), "the endpoint ends with its daemon")  # type: ignore[misc]


def is_live(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/v2/health/live", timeout=60) as answer:
        return bool(json.load(answer)["live"])


def test_the_endpoint_comes_with_the_daemon_and_goes_with_it(serve: Callable[..., Serving]) -> None:
    daemon = serve("--endpoint", "yes", "--endpoint-flags", ANY_PORT)
    assert is_live(daemon.url())
    done = subprocess.run([*COMMAND, "--runtime-dir", daemon.run_dir, "status"], capture_output=True, text=True)
    assert f"\nendpoint: {daemon.url()}\n" in done.stdout
    pid = daemon.pid()
    subprocess.run([*COMMAND, "--runtime-dir", daemon.run_dir, "shutdown"], check=True, capture_output=True)
    assert daemon.process.wait(120) == 0
    assert is_gone(pid)
    assert read_address(daemon.run_dir) is None


def test_an_endpoint_that_crashes_is_started_again(serve: Callable[..., Serving]) -> None:
    daemon = serve("--endpoint", "auto", "--endpoint-flags", ANY_PORT)
    daemon.url()
    first = daemon.pid()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: daemon.pid() != first, "another endpoint says where it answers")
    assert is_live(daemon.url())


def test_a_port_that_is_taken_leaves_the_daemon_serving_and_is_told(serve: Callable[..., Serving]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = serve("--endpoint", "auto", "--endpoint-flags", f"--port {port} --grpc-port none")
        wait_until(lambda: "cannot listen" in daemon.stats().get("endpoint_off", ""), "the reason is told")
        assert f"127.0.0.1:{port}: Address already in use" in daemon.stats()["endpoint_off"]
    assert daemon.process.poll() is None
    assert is_live(daemon.url()), "it is tried again, and the port is free now"


def test_a_daemon_that_is_killed_takes_its_endpoint_with_it(serve: Callable[..., Serving]) -> None:
    daemon = serve("--endpoint", "auto", "--endpoint-flags", ANY_PORT)
    daemon.url()
    pid = daemon.pid()
    daemon.process.kill()
    daemon.process.wait()
    wait_until(lambda: is_gone(pid), "the endpoint ends with its daemon")


def test_no_endpoint_is_started_if_the_daemon_is_told_so(serve: Callable[..., Serving]) -> None:
    daemon = serve("--endpoint", "no")
    wait_until(lambda: bool(daemon.stats()), "the daemon answers")
    assert daemon.stats()["endpoint_off"] == "the setting endpoint is no"
