"""Means of a daemon to fetch: its process for transfers, its lock file, and the cloud tier over both."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trims.core.errors import ArtifactError, DeadlineError, DigestMismatchError, ImageError, LostPeerError
from trims.sources.buckets.unfinished import NAME as PUSHES
from trims.sources.buckets.unfinished import UnfinishedPushes
from trims.sources.downloads import Downloads
from trims.sources.lock import NAME, LockFile
from trims.sources.process.fetcher import Fetcher, FetchSettings
from trims.sources.remote import Remote
from trims.store.resolve.addresses import cloud_image
from trims.tiers.cloud import CloudImage, CloudTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.daemon.config import Config
    from trims.sources.process.fetcher import Moved
    from trims.store.catalog import Catalog
    from trims.tiers.base import Draft


class Sources:
    """Sources of one daemon.

    Args:
        catalog: Says which images names stand for.

    Attributes:
        remote: Addresses.
        pushes: Objects whose parts may have been left in a store.
        tier: Images at addresses.

    Raises ConfigError if the lock file cannot be read.
    """

    def __init__(self, config: Config, catalog: Catalog) -> None:
        self._catalog = catalog
        settings = FetchSettings(
            downloads=str(config.state_dir / "downloads"),
            connections=config.fetch_connections,
            bytes_per_s=config.fetch_bytes_per_s or None,
            patience_s=config.fetch_patience_s,
            allow_hosts=config.allow_hosts,
            headers=str(config.fetch_headers or ""),
            capacity_bytes=config.download_capacity_bytes,
        )
        self.fetcher = Fetcher(settings)
        downloads = Downloads(config.state_dir / "downloads", config.download_capacity_bytes)
        lock = LockFile(config.state_dir / NAME)
        self.remote = Remote(self.fetcher, lock, downloads, prove_first=config.prove == "first")
        self.pushes = UnfinishedPushes(config.state_dir / PUSHES)
        self.tier = CloudTier(self._fetch, self._known)

    def close(self) -> None:
        """End transfers. Idempotent."""
        self.fetcher.close()

    def _known(self) -> Iterator[CloudImage]:
        for each in self.remote.images():
            if self._catalog.names_of(each.image_key):
                yield cloud_image(each)

    def _fetch(
        self, image: CloudImage, draft: Draft, on_progress: Callable[[int], None], stopped: Callable[[], bool]
    ) -> None:
        """See `ImageFetcher`."""
        order = {
            "address": image.address, "nbytes": image.nbytes, "checksums": dict(image.checksums), "named": True,
            "large_pages": draft.pages is not None,
        }  # fmt: skip

        def report(moved: Moved) -> None:
            on_progress(moved.done_bytes)

        journal = os.memfd_create("trims-journal", os.MFD_CLOEXEC)
        try:
            self.fetcher.do("image", order, fds=[draft.fd, journal], wanted=lambda: not stopped(), on_moved=report)
        except DeadlineError as error:
            raise LostPeerError(f"{image.address}: the daemon is shutting down") from error
        except (ArtifactError, DigestMismatchError) as error:
            raise ImageError(f"the image at {image.address} is not as it was described: {error}") from error
        finally:
            os.close(journal)
