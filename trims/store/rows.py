"""Rows that move: what is known of a version is kept under the model's name while it is the only one (`Entry.row`)."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from trims.core.errors import ManifestError, ModelNotFoundError, TrimsError
from trims.manifests.references import split_reference

if TYPE_CHECKING:
    from trims.registry.base import Registry
    from trims.registry.versions import Versions
    from trims.store.catalog import Catalog

log = logging.getLogger(__name__)


def moved_rows(before: Versions | None, after: Versions | None) -> dict[str, str]:
    """Return the rows of versions that have another row now, with that one.

    A version that took the place of another one keeps what is known under its row, as a manifest that was replaced.
    """
    if before is None or after is None:
        return {}
    pairs = list(zip(before.registered, after.registered, strict=False))
    if len(before.registered) != len(after.registered):
        pairs = [(version, version) for version in before.registered if version in after.registered]
    rows = {before.row_of(old): after.row_of(new) for old, new in pairs}
    return {old: new for old, new in rows.items() if old != new}


def restore_rows(registry: Registry, catalog: Catalog) -> None:
    """Move rows that a daemon which was killed, or another one with the same registry, has left behind."""
    known = catalog.models()
    try:
        rows = set(registry.rows())
        for row, manifest in known.items():
            now = None if row in rows else _row_now(registry, row, manifest)
            if now is not None:
                catalog.rename(row, now)
    except TrimsError as error:
        log.warning("what is known of versions of models may be found out again: %s", error)


def _row_now(registry: Registry, row: str, manifest: str) -> str | None:
    """Return the row that a version has now; None if it is not registered any more."""
    name, version = split_reference(row)
    try:
        versions = registry.versions(name)
    except (ModelNotFoundError, ManifestError):
        return None
    version = version or str(json.loads(manifest).get("version", ""))
    return versions.row_of(version) if version in versions.registered else None
