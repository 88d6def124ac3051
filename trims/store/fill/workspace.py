"""Workspace: what a model's readers need on a device beside its bytes, as manifests state or readers measured.

What a manifest states counts; else the most any reader has reported. Either is remembered in the catalog, so that it
counts from the first lease of a next daemon's life. Not covered: what is done about it (`trims.core.policy.capacity`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trims.store.catalog import Catalog
    from trims.store.resolve.resolved import Resolved


class Workspaces:
    """Workspaces that models need on devices, by image key.

    Args:
        catalog: Remembers it between lives.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._known = catalog.workspaces()

    def of(self, key: str) -> int | None:
        """Return the bytes for each session that reads an image; None if neither stated nor measured."""
        return self._known.get(key)

    def stated(self, resolved: Resolved) -> None:
        """Take note of what a manifest says, if it says anything."""
        nbytes = resolved.manifest.residency.workspace_bytes
        if nbytes is not None and nbytes != self._known.get(resolved.key):
            self._know(resolved.key, nbytes)

    def measured(self, key: str, nbytes: int, resolved: Resolved | None) -> int:
        """Record that a reader has needed `nbytes`. Return what counts from now on."""
        stated = None if resolved is None else resolved.manifest.residency.workspace_bytes
        if stated is None and nbytes > self._known.get(key, -1):
            self._know(key, nbytes)
        return self._known.get(key, 0)

    def _know(self, key: str, nbytes: int) -> None:
        with self._lock:
            self._known[key] = nbytes
            self._catalog.remember_workspace(key, nbytes)
