"""Working memory: what a model's readers need on a device beside its bytes, as manifests state or readers measured.

What was measured is the most any reader has reported, and is remembered in the catalog. Not covered: what is done about
it (`trims.core.room`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trims.store.catalog import Catalog
    from trims.store.resolve import Resolved


class WorkingMemory:
    """All that is known of it, by image key.

    Args:
        catalog: Remembers it between lives.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._measured = catalog.working()

    def of(self, resolved: Resolved) -> int | None:
        """Bytes for each session that reads it; None if nobody knows. What a manifest states counts."""
        stated = resolved.manifest.residency.working_bytes
        return stated if stated is not None else self._measured.get(resolved.key)

    def measured(self, key: str, nbytes: int, resolved: Resolved | None) -> int:
        """A reader has needed so much; returns what counts: what a manifest states, or the most that any needed."""
        with self._lock:
            most = max(nbytes, self._measured.get(key, 0))
            if most != self._measured.get(key):
                self._measured[key] = most
                self._catalog.remember_working(key, most)
        stated = self.of(resolved) if resolved is not None else None
        return most if stated is None else stated
