"""Fixtures of tests that start endpoints, or programs by `trims exec`."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from endpoints import Endpoint, is_gone
from looking import wait_until
from programs import Programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon


@pytest.fixture
def programs(folder: Path, daemon: Daemon) -> Iterator[Programs]:
    """Programs in a folder that is empty at first; nothing of them may be left."""
    (folder / "work").mkdir()
    made = Programs(folder / "work", daemon.config.runtime_dir)
    yield made
    made.end()


@pytest.fixture
def start(daemon: Daemon) -> Iterator[Callable[..., Endpoint]]:
    """Start an endpoint for the daemon; ended after the test, and nothing of it is left."""
    running: list[Endpoint] = []

    def make(*arguments: str) -> Endpoint:
        running.append(Endpoint(daemon.config.runtime_dir, *arguments))
        return running[-1]

    yield make
    for endpoint in running:
        left = endpoint.descendants() if endpoint.process.poll() is None else set()
        if endpoint.process.poll() is None:
            endpoint.end(signal.SIGKILL)
        for pid in left:
            wait_until(lambda pid=pid: is_gone(pid), f"process {pid} ends with its endpoint")  # type: ignore[misc]
