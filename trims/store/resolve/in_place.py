"""Keys under which artifacts are served from their own files, before these were read, and which may not be."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import blake3

from trims.core.place import FILE
from trims.formats.in_place import may_be_in_place
from trims.store.resolve.hashing import DigestNeededError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trims.formats.base import Artifact, Converter
    from trims.manifests.manifest import Manifest
    from trims.store.resolve.file_digests import FileDigests
    from trims.store.resolve.hashing import Digests
    from trims.store.resolve.resolved import Resolved

log = logging.getLogger(__name__)
#: Keys kept in memory.
_REMEMBERED = 4096


class InPlaceKeys:
    """See the module.

    Args:
        enabled: Whether any artifact may be served before it was read.
    """

    def __init__(self, digests: FileDigests, *, enabled: bool) -> None:
        self._digests = digests
        self.enabled = enabled
        #: Keys of artifacts that turned out to need a conversion, and why.
        self.converted: dict[str, str] = {}
        self._lock = threading.Lock()

    def key(
        self,
        manifest: Manifest,
        chosen: Converter,
        artifact: Artifact,
        facts: tuple[object, ...],
        digests: Sequence[Digests] | None,
    ) -> tuple[str | None, str]:
        """Return the key under which the artifact's own files may be served (a hash of identities), or why not."""
        why = self._why_not(manifest, chosen, artifact, digests)
        if why:
            return None, why
        key = str(blake3.blake3(json.dumps(["in place", *facts], sort_keys=True).encode()).hexdigest())
        return (None, self.converted[key]) if key in self.converted else (key, "")

    def _why_not(
        self, manifest: Manifest, chosen: Converter, artifact: Artifact, digests: Sequence[Digests] | None
    ) -> str:
        """Return why the artifact's own files may not be served as they are now; empty if they may.

        Files that another user may change are read first, and so are those of which a digest is stated, until it is
        known to be right, or whose manifest asks for it. A manifest that names a place, pins or persists wants one.
        """
        source = manifest.artifact
        if not self.enabled:
            return "by its settings (`trust`, `always_hash`) this daemon reads every artifact before it serves it"
        if source.trust == "verified" or not self._digests.prove(artifact.files, manifest, digests):
            return "its manifest (`sha256`, or `trust: verified`) has its files read first"
        if not may_be_in_place(chosen, artifact.options):
            return f"its format {chosen.format}, with its options, is always converted"
        if _wants_image(manifest):
            return "its manifest wants an image (`place`, `pin`, or `persist: always`)"
        others = [file for file in artifact.files if not _is_own(file)]
        return f"{others[0]} may be written by users other than the daemon's (chown, chmod go-w)" if others else ""

    def unless_converted(self, resolved: Resolved) -> Resolved:
        """Return the resolution. Raises DigestNeededError if its artifact turned out meanwhile to need a conversion.

        Otherwise a look that began before that was known would send its asks round in a circle.
        """
        if resolved.in_place is None or resolved.in_place not in self.converted:
            return resolved
        if not resolved.hashed:
            raise DigestNeededError(resolved.name)
        return replace(resolved, in_place=None, why_not=self.converted[resolved.in_place])

    def needs_conversion(self, name: str, in_place: str, why: str) -> None:
        """Have an artifact read before the next answer: it turned out not to be served from its own files."""
        with self._lock:
            if in_place not in self.converted:
                log.info("%s is converted: %s", name, why)
            self.converted[in_place] = why
            while len(self.converted) > _REMEMBERED:
                self.converted.pop(next(iter(self.converted)))


def _wants_image(manifest: Manifest) -> bool:
    """Return whether the manifest wants an image made of the artifact, in memory or on disk."""
    keep = manifest.residency
    return keep.place not in (None, FILE) or keep.pin or keep.persist == "always"


def _is_own(file: Path) -> bool:
    """Return whether only this user or root may write to the file."""
    status = file.stat()
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
