"""The tier protocol: create, seal, free, scan. Every tier passes the contract suite in `trims.testing.contracts`.

A tier knows how to hold images at one place. It never decides what to hold: capacity is charged by residency, which
asks for nothing that does not fit; a tier still refuses with CapacityError when the machine has less than was promised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.core.place import Place
    from trims.memory.cuda.drivers import Export
    from trims.memory.large_pages import LargePages


@dataclass(slots=True)
class Draft:
    """Memory being filled; nobody else can see it.

    Attributes:
        fd: Readable and writable, exactly `nbytes` long, zeroed.
        label: For the tier's own use.
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
        key: Image key.
        digest: blake3 of all bytes, hex.
        fd: Read-only descriptor, owned by the tier, open until `free`.
        label: For the tier's own use; shows where the bytes are.
        fresh: True if the bytes were checked in this daemon's life.
        identity: Length and times of the file when they were; a difference means that somebody touched it.
        named: Whether the file has a name, which somebody could remove.
        export: What lets borrowers open the memory, if it is a device's; `fd` is the head of the image then, and owned
            by the tier as that is.
    """

    key: str
    place: Place
    nbytes: int
    digest: str
    fd: int
    label: str
    fresh: bool = True
    identity: tuple[int, int, int] | None = None
    named: bool = True
    export: Export | None = None


@runtime_checkable
class Tier(Protocol):
    """One kind of memory at one place. Methods may block; all are safe to call from several threads."""

    @property
    def place(self) -> Place:
        """Where this tier's replicas lie."""
        ...

    @property
    def capacity_bytes(self) -> int:
        """Bytes of images it may hold."""
        ...

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """Give memory to fill. With `allocate` every page is reserved, so that it may be written through a mapping.

        Raises CapacityError when the machine has no room; nothing is left behind.
        """
        ...

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """Make it read-only and permanent under its true name. The draft is used up, also on failure."""
        ...

    def abort(self, draft: Draft) -> None:
        """Give an unsealed draft back."""
        ...

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """What a failed write into a draft means here: CapacityError if the memory is full, else the error itself."""
        ...

    def free(self, extent: Extent) -> None:
        """Give the memory back. When this returns, capacity is there again."""
        ...

    def scan(self) -> Iterator[Extent]:
        """Find what an earlier daemon left: yields what checks out, removes the rest. Called once, before anything."""
        ...

    def close(self) -> None:
        """Let go of descriptors and keep the replicas for the next daemon to find, if they are of a kind that stays."""
        ...


@runtime_checkable
class DeviceTier(Tier, Protocol):
    """A tier whose memory the daemon cannot reach: copies are its own affair. Its drafts have no descriptor.

    Attributes:
        uuid: Of the device.
        peers: UUIDs of the devices it can copy from directly.
        reserve_bytes: Left free beside the capacity, for the work of those who read there.
        unit_bytes: In which it gives memory.
    """

    uuid: str
    peers: frozenset[str]
    reserve_bytes: int
    unit_bytes: int

    @property
    def ends_with_session(self) -> bool:
        """True if a lease here counts until its session has ended, whatever the client says (see `IpcMemory`)."""
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

    def digest(self, extent: Extent) -> str:
        """blake3 of what lies there now, hex."""
        ...
