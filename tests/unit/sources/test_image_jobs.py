"""Jobs of images, against a real server: memory that is filled, and what is refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.transfer_jobs import DATA, job
from trims.core.errors import ArtifactError, CallerError, DigestMismatchError
from trims.sources.jobs import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.file_server import FileServer
    from trims.sources.job import Job, Surroundings


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create("image", os.MFD_CLOEXEC)
    os.ftruncate(fd, len(DATA))
    yield fd
    os.close(fd)


def image(around: Surroundings, server: FileServer, fd: int, **order: Any) -> Job:
    made = job(around, "image", f"{server.url}/m.bin", **{"nbytes": len(DATA), "checksums": {}, **order})
    made.fds = (fd,)
    return made


def test_memory_is_filled_and_its_checksum_found(around: Surroundings, server: FileServer, memory: int) -> None:
    server.serve("/m.bin", DATA)
    found = run(image(around, server, memory))["found"]
    assert os.pread(memory, len(DATA), 0) == DATA
    assert run(image(around, server, memory, checksums=found))["found"] == found


def test_another_length_than_was_described_is_refused_before_a_byte(
    around: Surroundings, server: FileServer, memory: int
) -> None:
    server.serve("/m.bin", DATA)
    with pytest.raises(ArtifactError, match="description says 7"):
        run(image(around, server, memory, nbytes=7))
    assert not any(os.pread(memory, len(DATA), 0))


def test_other_bytes_than_were_described_are_refused(around: Surroundings, server: FileServer, memory: int) -> None:
    server.serve("/m.bin", DATA)
    with pytest.raises(DigestMismatchError):
        run(image(around, server, memory, checksums={"crc64nvme": "0" * 16}))


def test_an_image_is_pushed_to_stores_only(around: Surroundings, memory: int) -> None:
    described = {
        "name": "m", "key": "a" * 64, "digest": "b" * 64, "nbytes": len(DATA), "file": "m.safetensors",
        "format": "npz", "recipe": {},
    }  # fmt: skip
    pushed = job(around, "push", "https://models.example/m", nbytes=len(DATA), image=described)
    pushed.fds = (memory,)
    with pytest.raises(CallerError, match="https"):
        run(pushed)
