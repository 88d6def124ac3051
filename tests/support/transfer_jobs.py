"""Jobs in a thread of the test's own, and files that they find."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import blake3

from trims.core.errors import (
    SourceUnavailableError,
    TrimsError,
)
from trims.sources.base import RemoteFile
from trims.sources.process.job import Job, Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trims.sources.base import Part

DATA = bytes(range(256)) * 5000
DIGEST = blake3.blake3(DATA).hexdigest()


def job(around: Surroundings, do: str, address: str, **order: Any) -> Job:
    return Job({"do": do, "address": address, "shown": address, "named": True, **order}, around)


class Files:
    """An opened address of several files, which a plug-in could make."""

    destination, notes, pinned = None, (), "own://a"

    def __init__(self, **files: bytes | TrimsError) -> None:
        self.of = files
        self.files = [
            RemoteFile(name, len(data) if isinstance(data, bytes) else 9, "v1") for name, data in files.items()
        ]
        self.closed = threading.Event()

    def open(self, address: str) -> Files:
        del address
        return self

    def fill(self, file: RemoteFile, parts: Sequence[Part]) -> Iterator[None]:
        data = self.of[file.name]
        if not isinstance(data, bytes):
            raise data
        if self.closed.is_set():
            raise SourceUnavailableError("closed")
        for begin, room in parts:
            room[:] = data[begin : begin + len(room)]
            yield

    def close(self) -> None:
        self.closed.set()
