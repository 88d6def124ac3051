"""The tier protocol: create, seal, free, scan, verify. Every tier passes the contract suite in `trims.testing.tiers`.

A tier knows how to hold images at one place. It never decides what to hold: capacity is charged by residency, which
asks for nothing that does not fit; a tier still refuses with NoSpaceError when the machine has less than was promised.

A device's tier has a wider protocol (`DeviceTier`), and is built from what the driver finds; the tier of artifacts in
place (`InPlaceTier`) has no memory of its own.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from trims.core.errors import DrainingError
from trims.image.descriptors import explain_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.core.place import Place
    from trims.image.in_place import InPlacePlan
    from trims.keeper.messages import Verdict
    from trims.memory.cuda.drivers import Export
    from trims.memory.large_pages import LargePages
    from trims.memory.pages import Pages

__all__ = [
    "DeviceTier",
    "Draft",
    "Extent",
    "InPlaceTier",
    "RemoteTier",
    "Tier",
    "explain_descriptors",
    "identity_of",
]


def identity_of(fd: int) -> tuple[int, ...]:
    """Return numbers that change when a file is replaced or touched: device, inode, length and both times."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@dataclass(slots=True)
class Draft:
    """Memory being filled, which no other process can see.

    Attributes:
        fd: Readable and writable, exactly `nbytes` long, zeroed.
        label: Mark for the tier's own use.
        pages: Memory that may be reserved in large pages and then written directly.
    """

    fd: int
    nbytes: int
    label: str
    pages: LargePages | None = None


@dataclass(slots=True, eq=False)
class Extent:
    """The memory under a sealed replica.

    Attributes:
        digest: blake3 of all bytes, hex; empty while that is unknown, which only the tier of files allows.
        fd: Read-only descriptor, owned by the tier, open until `free`; -1 where this machine has no bytes of it. A
            thread that may run beside `free` uses `reader` instead: the kernel gives the number of a closed descriptor
            to the next file.
        label: Mark for the tier's own use; shows where the bytes are.
        fresh: Whether the bytes were checked in this daemon's life.
        fetched: Whether they came from the cloud in this life.
        identity: `identity_of` the file when it was sealed, found or verified; another one means that it was touched.
        named: Whether the file has a name, which another process could remove.
        export: What lets borrowers open the memory, if it is a device's; `fd` is the head of the image then, and owned
            by the tier as that is.
        pages: Parts of the image that lie in files of the artifact; `fd` is the head then. Owned by the tier.
    """

    key: str
    place: Place
    nbytes: int
    digest: str
    fd: int
    label: str
    fresh: bool = True
    fetched: bool = False
    identity: tuple[int, ...] | None = None
    named: bool = True
    export: Export | None = None
    pages: tuple[Pages, ...] = ()
    _closed: bool = False
    _closing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def reader(self, part: Pages | None = None) -> Iterator[int]:
        """Lend a descriptor of the image, or of one part of it, that stays open for the block.

        Raises DrainingError if the memory was given back, OSError without a descriptor.
        """
        with self._closing:
            if self._closed:
                raise DrainingError(f"{self.label} was given back before it was read")
            fd = os.dup(self.fd if part is None else part.fd)
        try:
            yield fd
        finally:
            os.close(fd)

    @property
    def closed(self) -> bool:
        """Return whether the memory was given back."""
        return self._closed

    def close(self) -> None:
        """Close the descriptors; a second call does nothing. Only the tier that owns them calls this."""
        with self._closing:
            if not self._closed:
                self._closed = True
                for fd in (self.fd, *(part.fd for part in self.pages)):
                    if fd >= 0:
                        os.close(fd)


@runtime_checkable
class Tier(Protocol):
    """One kind of memory at one place. Methods may block; all are safe to call from several threads.

    The store's workers call them: fills, frees and verifications of several replicas at once, and `scan` alone before
    all. The threads that serve sessions and commands call none. What they take for granted:

    - The descriptors are of files that a process may map. A draft's is filled through mappings and by other processes
      (the converter). A replica's goes to sessions, which map it from its beginning; it is open for reading only.
    - A label is the replica's own, and the same after a restart: the catalog vouches for a replica by label and
      identity.
    - Nothing touches the file of a sealed replica: at `disk`, one whose times changed is taken back at the next open.
    - At `disk`, replicas outlive `trims shutdown --purge`; at `cpu`, those in the books are freed then.
    - At `cpu`, pages stay in memory: `cpu` promises that to readers.
    - What a method raises beyond CapacityError, ImageError and OSError fails that one load, with the tier's name.
    """

    @property
    def place(self) -> Place:
        """Return the place of this tier's replicas."""
        ...

    @property
    def capacity_bytes(self) -> int:
        """Return the bytes of images it may hold."""
        ...

    @property
    def hash_on_adoption(self) -> bool:
        """Return whether what `scan` finds must be verified before it is lent: another process may have written there.

        False where the bytes are checked when they are first copied (disk), or where they never left the hands of the
        process that holds them (a device's keeper).
        """
        ...

    @property
    def skipped(self) -> int:
        """Return how many replicas the last scan could not look at and left alone."""
        ...

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """Give memory to fill. With `allocate` every page is reserved, so that it may be written through a mapping.

        Raises NoSpaceError when the machine has no room, with the bytes it has left if the tier knows them: then idle
        images leave, and it is called again. CapacityError when the process has no descriptor. Nothing is left behind.
        """
        ...

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """Make it read-only and permanent under its true name. The draft is used up, also on failure."""
        ...

    def abort(self, draft: Draft) -> None:
        """Give an unsealed draft back."""
        ...

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """Return the meaning of a failed write: NoSpaceError, CapacityError without a descriptor, else itself."""
        ...

    def free(self, extent: Extent) -> None:
        """Give the memory back. When this returns, capacity is there again."""
        ...

    def scan(self) -> Iterator[Extent]:
        """Find what an earlier daemon left, without reading all of it. Called once, before anything.

        Yields every finished, well-formed replica with `fresh` False and its present identity. Removes only what is
        proven wrong: never finished, no image, or shorter than its own header says. What cannot be opened or read is
        left alone, logged with the reason, and counted in `skipped`.
        """
        ...

    def leave(self, extent: Extent) -> None:
        """Close what `scan` found and leave it where it is, for another daemon. It is not this tier's any more."""
        ...

    def verify(
        self, extent: Extent, cancelled: threading.Event | None = None, pace: Callable[[int], None] | None = None
    ) -> None:
        """Read and hash all bytes of a replica; sets `fresh` and `identity` if they are what was sealed.

        Args:
            extent: Memory of this tier. Freeing a broken one is up to the caller.
            cancelled: Stops it when set.
            pace: Called in this thread after each piece with the bytes done so far; it may sleep.

        Raises:
            ImageError: What lies there is not what was sealed; the message says what differs.
            OSError: The memory cannot be read, which proves nothing.
            TrimsError: Any other: it was stopped (DrainingError), or could not be finished.
        """
        ...

    def close(self) -> None:
        """Let go of descriptors and keep the replicas for the next daemon to find, if they are of a kind that stays.

        Idempotent.
        """
        ...


@runtime_checkable
class InPlaceTier(Tier, Protocol):
    """The tier of artifacts that are served from their own files. Nothing is copied there: there are no drafts."""

    def serve(self, key: str, generation: int, plan: InPlacePlan) -> Extent:
        """Open an artifact's files, and make the head of its image.

        Raises ArtifactError if a file is gone or is another one than was planned with, CapacityError without a
        descriptor.
        """
        ...


@runtime_checkable
class RemoteTier(Tier, Protocol):
    """A tier of images in other machines' keeping. Nothing is made there by a fill: there are no drafts."""

    @property
    def is_remote(self) -> bool:
        """Return True."""
        ...

    def fetch(
        self, extent: Extent, draft: Draft, on_progress: Callable[[int], None], stopped: Callable[[], bool]
    ) -> None:
        """Fill a draft of the host from a replica there; its checksums are compared on the way.

        Raises ImageError if the bytes are not those that were described, SourceUnavailableError and the like if they
        cannot be had now, LostPeerError once `stopped()` is true.
        """
        ...

    def doubt(self, key: str) -> None:
        """Note that an image that was fetched turned out to have other bytes than it is said to have."""
        ...

    def doubts(self, key: str) -> bool:
        """Return whether that was so: then it is hashed before it is lent, from now on."""
        ...


@runtime_checkable
class DeviceTier(Tier, Protocol):
    """A tier whose memory the daemon cannot reach: copies are its own affair. Its drafts have no descriptor.

    Attributes:
        peers: UUIDs of the devices it can copy from directly.
        reserve_bytes: Left free beside the capacity, for the work of sessions that read there.
    """

    uuid: str
    peers: frozenset[str]
    reserve_bytes: int
    unit_bytes: int

    @property
    def ends_with_session(self) -> bool:
        """Return whether a lease counts until its session has ended, whatever the client says (see `IpcMemory`)."""
        ...

    def copy_in(self, draft: Draft, source: Extent, on_progress: Callable[[int], None] | None = None) -> None:
        """Fill a draft of this tier from a replica on the host. Raises ImageError if that is not an image."""
        ...

    def copy_across(self, draft: Draft, source: Extent, on_progress: Callable[[int], None] | None = None) -> None:
        """Fill a draft of this tier from a replica on another device, which must be a peer."""
        ...

    def copy_out(self, extent: Extent, draft: Draft, on_progress: Callable[[int], None] | None = None) -> None:
        """Fill a draft of the host from a replica here."""
        ...

    def examine(self, extent: Extent) -> Verdict:
        """Compare the bytes that lie there now with what was sealed."""
        ...
