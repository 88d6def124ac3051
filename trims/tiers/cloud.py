"""The cloud tier: images in other machines' keeping, which this daemon knows the addresses of.

Nothing there is this daemon's: a replica that leaves the books is forgotten here and stays where it is. A replica has
no bytes on this machine, so no session reads it; the host's tiers are filled from it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from trims.core.errors import NotSupportedError
from trims.core.place import CLOUD, Place
from trims.tiers.base import Draft, Extent, explain_descriptors

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Mapping

#: Most keys of broken images that are kept.
_MOST_DOUBTED = 4096


@dataclass(frozen=True, slots=True)
class CloudImage:
    """An image at an address.

    Attributes:
        digest: blake3 of all bytes, hex.
        checksums: Checksums of the bytes, by algorithm: compared on the way.
        cost_s: Seconds that making it took where it was made.
    """

    key: str
    digest: str
    nbytes: int
    address: str
    checksums: Mapping[str, str] = field(default_factory=dict)
    cost_s: float = 0.0


class ImageFetcher(Protocol):
    """Brings the bytes of an image into memory. Raises as `RemoteTier.fetch`."""

    def __call__(
        self, image: CloudImage, draft: Draft, on_progress: Callable[[int], None], stopped: Callable[[], bool]
    ) -> None:
        """Fill a draft, which has the image's length and may be all holes."""
        ...


class CloudTier:
    """Images at addresses.

    Args:
        fetch: Moves bytes.
        known: Returns the images that earlier lives of the daemon knew and that names still stand for.
    """

    place: Place = CLOUD
    hash_on_adoption: bool = False
    capacity_bytes: int = sys.maxsize
    skipped: int = 0
    is_remote: bool = True
    #: A network that does not answer holds up no other place.
    apart: bool = True

    def __init__(self, fetch: ImageFetcher, known: Callable[[], Iterable[CloudImage]]) -> None:
        self._fetch = fetch
        self._known = known
        self._images: dict[str, CloudImage] = {}
        #: Keys of images that turned out to have other bytes than they are said to have.
        self._doubted: dict[str, None] = {}

    def know(self, image: CloudImage) -> Extent:
        """Return the memory, so to speak, of an image at an address; it replaces one that was known of the same key."""
        self._images[image.key] = image
        return Extent(image.key, self.place, image.nbytes, image.digest, -1, image.address, named=False)

    def fetch(
        self, extent: Extent, draft: Draft, on_progress: Callable[[int], None], stopped: Callable[[], bool]
    ) -> None:
        """See `RemoteTier.fetch`."""
        self._fetch(self._images[extent.key], draft, on_progress, stopped)

    def doubts(self, key: str) -> bool:
        """See `RemoteTier.doubts`."""
        return key in self._doubted

    def doubt(self, key: str) -> None:
        """See `RemoteTier.doubt`."""
        self._doubted[key] = None
        while len(self._doubted) > _MOST_DOUBTED:
            self._doubted.pop(next(iter(self._doubted)))

    def scan(self) -> Iterator[Extent]:
        """See `Tier.scan`. No network is used: what earlier lives knew is taken for there until it is wanted."""
        for image in self._known():
            yield self.know(image)

    def free(self, extent: Extent) -> None:
        """See `Tier.free`. The image stays where it is."""
        self._images.pop(extent.key, None)
        extent.close()

    def leave(self, extent: Extent) -> None:
        """See `Tier.leave`."""
        self.free(extent)

    def close(self) -> None:
        """See `Tier.close`."""
        self._images.clear()

    def verify(
        self, extent: Extent, cancelled: threading.Event | None = None, pace: Callable[[int], None] | None = None
    ) -> None:
        """See `Tier.verify`. Nothing is read: bytes are compared whenever they are fetched."""

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """See `Tier.create`. Raises NotSupportedError always."""
        del key, generation, nbytes, allocate
        raise NotSupportedError("an image comes to the cloud by `trims push`; choose cpu or disk")

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """See `Tier.seal`. There are no drafts."""
        del draft, key, digest
        raise NotSupportedError("nothing is sealed in the cloud; choose cpu or disk")

    def abort(self, draft: Draft) -> None:
        """See `Tier.abort`. There are no drafts."""

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """See `Tier.explain`."""
        del nbytes
        return explain_descriptors(error)
