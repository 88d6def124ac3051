"""A job in a thread of the test's own: how it ends."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import blake3
import pytest

from trims.core.errors import (
    ArtifactNotFoundError,
    LostPeerError,
    SourceUnavailableError,
)
from trims.sources.process.jobs import run

if TYPE_CHECKING:
    from tests.support.file_server import FileServer
    from trims.sources.process.job import Surroundings

from tests.support.transfer_jobs import DATA, job

DIGEST = blake3.blake3(DATA).hexdigest()
IMAGE = {
    "kind": "trims-image", "format_version": 1, "name": "m", "key": "a" * 64, "digest": "b" * 64, "nbytes": 9,
    "checksums": {"crc64nvme": "0" * 16}, "file": "m.safetensors", "format": "torch", "recipe": {"format": "torch"},
    "manifest": {}, "signature": "",
}  # fmt: skip


def test_a_look_that_fails_leaves_no_connection(around: Surroundings, server: FileServer) -> None:
    server.serve("/m.bin", DATA, statuses=[404])
    with pytest.raises(ArtifactNotFoundError):
        run(job(around, "look", f"{server.url}/m.bin"))
    until = threading.Event()
    for _ in range(200):
        if not server.connections:
            break
        until.wait(0.05)
    assert not server.connections


def test_a_server_that_sends_nothing_is_waited_for_as_long_as_the_limits_say(around: Surroundings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/m.bin"
        with pytest.raises(SourceUnavailableError, match=r"sent nothing for 3 s"):
            run(job(around, "look", address))


def test_a_job_that_was_stopped_looks_at_nothing_more(around: Surroundings, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    stopped = job(around, "look", f"{server.url}/m.bin")
    stopped.stop()
    with pytest.raises(LostPeerError) as raised:
        run(stopped)
    assert type(raised.value) is LostPeerError
