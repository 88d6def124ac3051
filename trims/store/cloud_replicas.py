"""Replicas in the cloud, as they become known: by a look at an address, or by a push."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trims.core.place import CLOUD
from trims.core.residency.events import Adopted

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.store.fill.runner import Runner
    from trims.store.shell import Shell
    from trims.tiers.cloud import CloudImage, CloudTier


class CloudReplicas:
    """Takes images at addresses into the books.

    Args:
        tier: Knows them from then on.
        shell: Knows which images lie where.
        runner: Gets their memory.
        feed: Lets an event happen.
    """

    def __init__(
        self, tier: CloudTier, shell: Shell, runner: Runner, feed: Callable[[Adopted], None], clock: Callable[[], float]
    ) -> None:
        self._tier, self._shell, self._runner = tier, shell, runner
        self._feed, self._clock = feed, clock
        self._lock = threading.Lock()

    def know(self, image: CloudImage) -> None:
        """Take an image into the books, unless they have it, or are just forgetting it. Never blocks for long."""
        with self._lock:
            if any(found.place is CLOUD for found in self._shell.places_of(image.key)):
                return
            extent = self._tier.know(image)
            self._feed(
                Adopted(
                    at_s=self._clock(), key=image.key, place=CLOUD, nbytes=image.nbytes, cost_s=image.cost_s,
                    descriptors=0, why=f"found at {image.address}",
                )
            )  # fmt: skip
            for found in self._shell.places_of(image.key):
                if found.place is CLOUD:
                    self._runner.adopt(found.id, extent)
