"""The protocol of a source: what an address holds, and its bytes. Every scheme passes `trims.testing.sources`.

A source knows one scheme: how to look at an address, and how to bring parts of its files into memory. Which parts are
missing, what was fetched before, whether the bytes are right, how fast and how often they may be asked for is decided
above, once for all schemes (`transfer`).

Third parties add schemes with the entry-point group `trims.sources`: the name is the scheme, the value a class that is
called with `trims.sources.settings.SourceSettings` and gives a `Source`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

__all__ = ["CHECKSUMS", "Destination", "Opened", "Part", "RemoteFile", "Source"]

#: Checksums that a source may state for a file, strongest first: each as lower-case hexadecimal digits.
CHECKSUMS = ("sha256", "blake3", "git-sha1", "crc64nvme", "crc32c")

#: Bytes of a file from an offset on, as memory that is to be filled.
Part = tuple[int, memoryview]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at an address, at one version.

    Attributes:
        name: Path below the address, with `/`; of a single file, its last part.
        nbytes: Length.
        version: Text that changes when the bytes do (an ETag as the server writes it, the name of a blob); empty if
            the source states none.
        checksums: Hexadecimal digests that the source states, by the names of `CHECKSUMS`.
        in_ranges: The source sends any part; False: only all from the start, which is asked for once.
    """

    name: str
    nbytes: int
    version: str = ""
    checksums: Mapping[str, str] = field(default_factory=dict)
    in_ranges: bool = True


class Destination(Protocol):
    """Where files of one address are kept on this machine. Methods may block; one thread calls them for each file."""

    def find(self, file: RemoteFile) -> Path | None:
        """Return the path of a complete copy of exactly this version; None if there is none. Reads no network."""
        ...

    def partial(self, file: RemoteFile) -> Path:
        """Return where a transfer writes: on the file system of `publish`, the same path each time for this version.

        What belongs to the transfer lies beside it, under the same name with another ending. Folders are made.
        """
        ...

    def lock(self, file: RemoteFile, wanted: Callable[[], bool]) -> AbstractContextManager[None]:
        """Keep other processes from writing the same file, for a block.

        Waits for them as long as `wanted()` is true, which is asked now and then; else raises DeadlineError.
        """
        ...

    def publish(self, file: RemoteFile, partial: Path) -> Path:
        """Give a complete, checked file its name by a rename; return the path under which it is read."""
        ...

    def finish(self, files: Sequence[RemoteFile]) -> Path:
        """Record that these files of the address are there; return the folder that holds them under their names."""
        ...


@runtime_checkable
class Opened(Protocol):
    """An address that was looked at. Methods may block; `fill` is called by several threads at once.

    Attributes:
        pinned: The address with its version written out, as far as the scheme has a way (`hf://org/name@COMMIT`).
        files: Files that it holds, in the order of their names; one for the address of a file.
        destination: Where the scheme keeps files on this machine; None for the daemon's own folder of downloads.
        notes: What people should know about how it was found, such as that the network was not reached.
    """

    pinned: str
    files: Sequence[RemoteFile]
    destination: Destination | None
    notes: Sequence[str]

    def fill(self, file: RemoteFile, parts: Sequence[Part]) -> Iterator[None]:
        """Fill each part in order; yield after each, so that it is checked while it is hot.

        Args:
            file: One of `files`.
            parts: Adjoining parts of it, in order: a source asks for all of them at once.

        Raises:
            ArtifactChangedError: The file is another one than was looked at.
            ArtifactNotFoundError: The file is gone.
            SourceRefusedError: The source wants other credentials.
            SourceUnavailableError: The source does not answer, or broke off; asking again may help.
            ArtifactError: The source answers with something else than was asked for.
        """
        ...

    def close(self) -> None:
        """Give back connections. Idempotent."""
        ...


@runtime_checkable
class Source(Protocol):
    """One scheme of addresses."""

    def open(self, address: str) -> Opened:
        """Look at an address. Blocks. Raises as `Opened.fill`, and CallerError for an address that is none."""
        ...
