"""What every test stands on: leaks are counted round each test, and a daemon is a fixture away."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_SETTLE_S = 5.0
#: Threads and descriptors that libraries keep for the life of the process, once used.
_LIBRARY_THREADS = ("pytest_timeout", "ThreadPoolExecutor-", "asyncio_")


def _descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue  # the listing's own
    return found


def _threads() -> set[str]:
    return {
        f"{thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if not thread.name.startswith(_LIBRARY_THREADS)
    }


def _children() -> set[str]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update((task / "children").read_text().split())
        except FileNotFoundError:
            continue
    return found


def _segments() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("trims-", "psm_", "sem."))}


def _snapshot() -> dict[str, set[str]]:
    return {
        "descriptor": {f"{fd} -> {target}" for fd, target in _descriptors().items()},
        "thread": _threads(),
        "child process": _children(),
        "shared-memory name": _segments(),
    }


@pytest.fixture(autouse=True)
def leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves descriptors, threads, processes or shared-memory names behind."""
    before = _snapshot()
    yield
    gc.collect()
    until = time.monotonic() + _SETTLE_S
    while True:
        after = _snapshot()
        left = {kind: after[kind] - before[kind] for kind in after if after[kind] - before[kind]}
        if not left:
            return
        if time.monotonic() > until:
            break
        time.sleep(0.01)  # ends of threads and processes are seen late, never missed
    pytest.fail(f"{request.node.nodeid} leaked: {left}")


@pytest.fixture(scope="session", autouse=True)
def _libraries_are_warm() -> None:
    """gRPC opens descriptors of its own at first use and keeps them; have that happen before anything is counted."""
    import grpc

    with grpc.insecure_channel("unix:/nonexistent/trims.sock") as channel:
        call = channel.unary_unary("/nobody/Home", lambda _: b"", lambda _: b"")
        with pytest.raises(grpc.RpcError):
            call(None, timeout=0.2)
