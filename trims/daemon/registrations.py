"""Changes of the registry as operators order them: manifests, versions and aliases, and what the store learns of each.

The registry is changed first. Then what is known under the old manifest or alias counts no more, so an open that is
asked for after the order was answered finds the new one. Leases keep what they have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError, ManifestError, ModelNotFoundError, NotSupportedError
from trims.manifests.manifest import parse_manifest
from trims.manifests.references import name_of, split_reference
from trims.store.rows import moved_rows

if TYPE_CHECKING:
    from trims.daemon.transfers import Transfers
    from trims.manifests.manifest import Manifest
    from trims.registry.base import Registry
    from trims.registry.versions import Entry, Versions
    from trims.store.store import Store


class Registrations:
    """Registers, switches and removes.

    Args:
        store: Learns of each change.
        transfers: Removes downloads that no model has any more.
    """

    def __init__(self, store: Store, registry: Registry, transfers: Transfers) -> None:
        self._store, self._registry, self._transfers = store, registry, transfers

    def register(self, raw: dict[str, Any], origin: str, *, replace: bool) -> Entry:
        """Keep a manifest, and return what it was registered as.

        Raises as `Registry.put`, and NotSupportedError for settings with which every request would fail.
        """
        self._store.resolver.check_reference(raw, origin)
        if refusal := self._store.find_refusal(parse_manifest(raw, origin)):
            raise NotSupportedError(refusal)
        before = self._versions(raw.get("name"))
        manifest = self._registry.put(raw, origin, replace=replace)
        after = self._registry.versions(manifest.name)
        self._moved(before, after)
        entry = self._registry.find(f"{manifest.name}@{manifest.version}")
        if manifest.artifact.model is None:
            self._store.manifest_changed(entry.row)
        else:  # the name stands for no image of its own any more
            self._store.retire(entry.row)
        self._store.model_changes.notify([manifest.name])
        return entry

    def unregister(self, reference: str, *, every: bool) -> None:
        """Forget a version of a model, or all. Raises as `Registry.remove_version`."""
        name = name_of(reference)
        before = self._registry.versions(name)
        manifests = {row: self._known_manifest(row) for row in before.rows()}
        self._registry.remove_version(reference, every=every)
        after = self._versions(name)
        left = () if after is None else after.registered
        for row in [before.row_of(version) for version in before.registered if version not in left]:
            self._store.retire(row)
            manifest = manifests[row]
            if manifest is not None:
                self._transfers.forgotten(manifest)
        self._moved(before, after)
        self._store.model_changes.notify([name])

    def alias(self, reference: str, version: str, *, back: bool, remove: bool) -> Versions:
        """Show, switch, switch back or remove an alias. Return what the model has then.

        Raises ModelNotFoundError, CallerError.
        """
        name, label = split_reference(reference)
        if bool(version) + back + remove > 1:
            raise CallerError("an alias is switched to a version, switched back or removed; ask for one of these")
        if not (version or back or remove):
            return self._registry.versions(name)
        now = self._registry.remove_label(name, label) if remove else self._registry.switch(name, label, version)
        self._store.alias_changed(name)
        self._store.model_changes.notify([name])
        return now

    def _versions(self, name: object) -> Versions | None:
        """Return the versions of a model; None if there is none, or its manifest cannot be read."""
        try:
            return self._registry.versions(name) if isinstance(name, str) else None
        except (ModelNotFoundError, ManifestError):
            return None

    def _moved(self, before: Versions | None, after: Versions | None) -> None:
        for old, new in moved_rows(before, after).items():
            self._store.renamed(old, new)

    def _known_manifest(self, row: str) -> Manifest | None:
        """Return a version's manifest; None if it cannot be read."""
        try:
            return self._registry.get(row)
        except ManifestError:
            return None
