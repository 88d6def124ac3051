"""Resolution from a name to an image key: manifest, files, digests, recipe.

The first resolution reads every byte of the artifact once (blake3, and sha256 where the manifest states one); later
ones compare identities. The key is content-true: digests of all files, and everything else the image depends on.

A name has an *epoch*, which rises whenever its manifest changes or goes. A resolution that began in an earlier epoch
is not remembered, and its askers are resolved again: they never get what the name stood for before they asked.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import (
    ArtifactChangedError,
    TrimsError,
)
from trims.manifests.manifest import ArtifactSource, Framework, Manifest, parse_manifest
from trims.manifests.references import name_of
from trims.registry.versions import Entry
from trims.store.catalog import FILE_PREFIX
from trims.store.file_names import AT_IDENTITY, parse_file_name
from trims.store.resolve.artifacts import ANY_READING, ArtifactLooks
from trims.store.resolve.by_model import ByModel
from trims.store.resolve.file_digests import FileDigests, rest_of
from trims.store.resolve.hashing import Reading, ReplacedError
from trims.store.resolve.mounts import mount_of_now
from trims.store.resolve.references import References
from trims.store.resolve.resolved import Resolved, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trims.formats.base import Limits
    from trims.formats.conversion.interpreter_selection import InterpreterSelection
    from trims.registry.base import Registry
    from trims.sources.remote import Remote
    from trims.store.catalog import Catalog

log = logging.getLogger(__name__)
#: Readings of one file, replaced in each, after which a lookup gives up.
_MOST_BEGUN = 8
#: Seconds for which an open trusts that the artifact's files are still as they were at the last look.
_TRUST_S = 0.5
#: Names kept in memory; the oldest are looked up in the catalog again, which reads no artifact.
_REMEMBERED = 4096


class Resolver:
    """Resolves names, and remembers.

    Args:
        picker: Says which environment a framework runs in.
        artifacts: Folder for what builders make.
        always_hash: Read every artifact whenever its files would only be compared: for artifacts that are written
            through shared mappings, which changes no time that could be compared.
        in_place: Artifacts may be served from their own files before they were read.
        real_devices: Frameworks meet NVIDIA's GPUs where a manifest names a device, and no stand-in.
        remote: Fetches addresses; None for a store that has none.
        rest_s: Seconds until a reading of a file is certain to see all of its last write; see `rest_of`.
    """

    def __init__(
        self,
        registry: Registry,
        catalog: Catalog,
        picker: InterpreterSelection,
        artifacts: Path,
        limits: Limits,
        *,
        always_hash: bool = False,
        in_place: bool = False,
        real_devices: bool = False,
        remote: Remote | None = None,
        clock: Callable[[], float] = time.monotonic,
        rest_s: Callable[[Path], float] | None = None,
    ) -> None:
        self._registry = registry
        self._catalog = catalog
        self._digests = FileDigests(catalog, trusts=not always_hash, rest_s=rest_s or rest_of)
        self._artifacts = ArtifactLooks(
            catalog, picker, artifacts, limits, self._digests, in_place=in_place and not always_hash,
            real_devices=real_devices, remote=remote, clock=clock,
        )  # fmt: skip
        self._clock = clock
        self.remote = remote
        #: Inputs and outputs of models.
        self.signatures = self._artifacts.signatures
        #: Facts known of each row, and which row a name that was asked for led to, and when that was looked up.
        self._known: ByModel[Resolved] = ByModel()
        self._rows: ByModel[tuple[str, float]] = ByModel()
        self._changes_outside = registry.changes_outside
        self._epochs: dict[str, int] = {}
        self._lock = threading.Lock()
        #: Names whose manifests refer to another model's artifact.
        self.references = References(registry, clock, _TRUST_S)
        self._superseded: Callable[[str, str], None] = lambda before, now: None  # noqa: ARG005 - nothing follows
        self._changed: Callable[[list[str]], None] = lambda names: None  # noqa: ARG005

    def connect(
        self,
        *,
        superseded: Callable[[str, str], None],
        changed: Callable[[list[str]], None],
        is_on_host: Callable[[str], bool] = lambda key: False,  # noqa: ARG005
    ) -> None:
        """Name who learns of results. Both are called from a worker.

        Args:
            superseded: Given a key that no name stands for any more, and the key in its place.
            changed: Given the names whose key, format or tensors are other ones than before.
            is_on_host: Says of a key whether its image can be read on this machine.
        """
        self._superseded, self._changed, self._artifacts.is_on_host = superseded, changed, is_on_host

    @property
    def compares(self) -> bool:
        """Return whether a file whose identity is unchanged is taken to hold the same bytes."""
        return self._digests.trusts

    @property
    def in_place(self) -> bool:
        """Return whether any artifact may be served before it was read."""
        return self._artifacts.in_place.enabled

    def known(self, name: str) -> Resolved | None:
        """Return what the name stands for, if that was looked at within the last half second.

        Memory only: never blocks.
        """
        found = self._rows.get(name)
        known = None if found is None else self._known.get(found[0])
        if found is not None and self._changes_outside and self._clock() - found[1] >= _TRUST_S:
            return None
        if known is None or (self._clock() - known.checked_at_s >= _TRUST_S and not name.startswith(AT_IDENTITY)):
            return None
        return None if known.in_place in self._artifacts.in_place.converted else known

    def remembered(self, name: str) -> Resolved | None:
        """Return what the name stood for at the last look, however long ago. Memory only: never blocks."""
        found = self._rows.get(name)
        return self._known.get(name if found is None else found[0])

    def target(self, name: str) -> str:
        """Return the model that a name refers to by its manifest; else the name itself. Reads the registry.

        Raises ModelNotFoundError or ManifestError.
        """
        return name if name.startswith(FILE_PREFIX) else self.references.target(name)

    def check_reference(self, raw: Mapping[str, Any], origin: str) -> None:
        """Raise ModelNotFoundError or ManifestError for a reference to what is not there or has no artifact."""
        artifact = raw.get("artifact")
        if isinstance(artifact, dict) and artifact.get("model"):
            self.references.referred(parse_manifest(raw, origin))

    def epoch(self, name: str) -> int:
        """Return the epoch of a model, which rises whenever a manifest or an alias of it changes or goes."""
        return self._epochs.get(name_of(name) if "@" in name else name, 0)

    def row_of(self, name: str) -> str:
        """Return the row that a reference leads to; a path is its own. Reads the registry. Raises as `manifest`."""
        return self._entry(name).row

    def resolve(self, name: str, reading: Reading = ANY_READING) -> Resolved:
        """Look into the name, reading the artifact if its files changed. Slow; call it from a worker.

        A name that refers to another model is answered with what that name stands for, which has its name.

        Raises ModelNotFoundError, ManifestError, ArtifactError, DigestMismatchError or NotSupportedError, and what
        `reading` says.
        """
        begun = 0
        while True:
            epoch = self.epoch(name)
            try:
                known = name in self._rows and not self._changes_outside  # it has an artifact of its own
                target = name if known else self.target(name)
                if target != name:
                    resolved = self.resolve(target, reading)
                else:
                    asked = None if known else self._entry(name)
                    again = self._looked_at_again(name, reading, asked)
                    resolved = again or self._resolve(asked or self._entry(name), reading)
                    resolved = self._unless_converted(resolved)
            except ReplacedError as error:
                begun += 1
                if begun == _MOST_BEGUN:  # it never rests, or its file system has no lasting numbers of files
                    raise ArtifactChangedError(
                        f"{error} was replaced {begun} times while it was read; open it again once it rests"
                    ) from error
                continue  # with the file that is there now
            except TrimsError:
                if epoch == self.epoch(name):
                    raise
                continue  # an error about a manifest that is gone
            if target != name:
                if self._refer(name, target, epoch):
                    return resolved
            elif self._remember(name, resolved := replace(resolved, epoch=epoch), epoch):
                return resolved

    def _unless_converted(self, resolved: Resolved) -> Resolved:
        keys = self._artifacts.in_place
        return keys.unless_converted(resolved) if resolved.in_place in keys.converted else resolved

    def _refer(self, name: str, target: str, epoch: int) -> bool:
        """Remember what a name refers to. Return False if its manifest changed since `epoch`."""
        with self._lock:
            if self.epoch(name) != epoch:
                return False
            self.references.remember(name, target)
            return True

    def _looked_at_again(self, name: str, reading: Reading, asked: Entry | None) -> Resolved | None:
        """Return what is known of the name, if its files are still those that were looked at; else None.

        Args:
            asked: What the registry has now; None if it has what is remembered.
        """
        known = self._known.get(self._rows.get(name, ("", 0.0))[0] if asked is None else asked.row)
        if known is not None and asked is not None and asked.manifest != known.manifest:
            return None
        if known is None or (reading.digest and not known.hashed) or self._artifacts.has_gone(known):
            return None
        if not self._digests.trusts and known.checked_at_s + _TRUST_S <= self._clock():
            return None
        if reading.behind is not None and not known.certain:
            return None
        return replace(known, checked_at_s=self._clock()) if self._artifacts.is_as_before(known) else None

    def _resolve(self, entry: Entry, reading: Reading) -> Resolved:
        return self._artifacts.look(entry.row, entry.manifest, reading)

    def _remember(self, name: str, resolved: Resolved, epoch: int) -> bool:
        """Keep a resolution, also in the catalog. Return False if the manifest changed since `epoch`."""
        with self._lock:
            if self.epoch(name) != epoch:
                return False
            row = resolved.name
            before, self._known[row] = self._known.get(row), resolved
            self._rows[name] = row, self._clock()
            for remembered in (self._known, self._rows):
                while len(remembered) > _REMEMBERED:
                    remembered.drop_oldest()
            # Not for a path, which has to stay among those that the catalog was asked for last.
            again = before is not None and replace(resolved, checked_at_s=before.checked_at_s) == before
            if again and not row.startswith(FILE_PREFIX):
                return True
            manifest = text_of(resolved.manifest)
            self._catalog.remember_format(row, resolved.artifact.format, manifest)
            superseded = self._catalog.remember_key(row, resolved.key, manifest) if resolved.hashed else None
        if superseded is not None:
            self._superseded(superseded, resolved.key)
        if before is None or (before.key, before.artifact.format) != (resolved.key, resolved.artifact.format):
            self._changed([name_of(resolved.name)])
        return True

    def format_known(self, row: str, manifest: Manifest) -> str:
        """Return the format of a version's artifact, as stated or found in this life or an earlier one; else empty.

        Memory only: never blocks.
        """
        if manifest.artifact.model is not None:
            target = self.references.entry_of(manifest)
            return "" if target is None else self.format_known(target.row, target.manifest)
        return manifest.artifact.format or self._catalog.format_under(row, text_of(manifest))

    def find_format(self, name: str) -> str:
        """Look at the first bytes of a model's file for its format; empty if it has no file yet. Slow, as a look.

        Raises what `resolve` raises.
        """
        entry = self._entry(name)
        found = self._artifacts.format_of_file(entry.manifest)
        if found and found != self.format_known(entry.row, entry.manifest):
            self._catalog.remember_format(entry.row, found, text_of(entry.manifest))
            self._changed([entry.manifest.name])
        return found

    def find_trouble(self, name: str) -> str:
        """See `ArtifactLooks.find_trouble`."""
        entry = self._entry(name)
        return self._artifacts.find_trouble(entry.row, entry.manifest)

    def find_refusal(self, manifest: Manifest) -> str:
        """See `ArtifactLooks.find_refusal`."""
        return self._artifacts.find_refusal(manifest)

    def needs_conversion(self, name: str, in_place: str, why: str) -> None:
        """See `InPlaceKeys.needs_conversion`."""
        self._artifacts.in_place.needs_conversion(name, in_place, why)

    def where_now(self, name: str) -> str | None:
        """Return `where` if that is known without reading anything, else None. Memory only: never blocks."""
        known = self.remembered(name)
        if known is not None:
            return known.mount
        return mount_of_now(Path(parse_file_name(name).path)) if name.startswith(FILE_PREFIX) else None

    def where(self, name: str) -> str:
        """Return what a look into the name may hang on: the mount point of its file, or `builder`. Reads the registry.

        Raises ModelNotFoundError or ManifestError.
        """
        return self.where_of(self.manifest(name))

    def where_of(self, manifest: Manifest) -> str:
        """Return what a look at a manifest's files may hang on, as `where`."""
        return self._artifacts.where(manifest)

    def manifest(self, name: str) -> Manifest:
        """Return the manifest that says what a name opens: that of the model it refers to; one made up for a path."""
        return self._entry(name).manifest

    def _entry(self, name: str) -> Entry:
        if name.startswith(FILE_PREFIX):
            wanted = parse_file_name(name)
            source = ArtifactSource(path=wanted.path, format=wanted.format, options=wanted.options)
            framework = Framework(wanted.framework[0], f"=={wanted.framework[1]}") if wanted.framework else None
            return Entry(name, Manifest(name=name, artifact=source, framework=framework))
        return self.references.followed(name)

    def forget(self, name: str) -> None:
        """Make lookups of a model count no more, in all its versions: a manifest or an alias changed, or went."""
        model = name_of(name)
        with self._lock:
            self._epochs[model] = self.epoch(model) + 1
            for remembered in (self._known, self._rows):
                remembered.drop_model(model)
            self.references.forget(model)

    def looked_stale(self, name: str) -> None:
        """Drop trust in what is known of the name, so that the next look compares its files."""
        with self._lock:
            known = self.remembered(self.references.of(name))
            if known is not None:
                self._known[known.name] = replace(known, checked_at_s=-math.inf)
