"""A registry of a plug-in that keeps one manifest for each name, as a registry of versions: each model has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError, ManifestError, NotSupportedError
from trims.manifests.references import name_of, split_reference
from trims.registry.versions import PLAIN, Alias, Entry, Versions

if TYPE_CHECKING:
    from trims.manifests.manifest import Manifest
    from trims.registry.base import ManifestRegistry


class OneVersion:
    """See `Registry`. Another version of a model is refused unless it replaces the one that is there.

    Args:
        inner: Keeps the manifests.
        where: Names the registry in errors.
    """

    def __init__(self, inner: ManifestRegistry, where: str) -> None:
        self._inner = inner
        self._where = where
        self.put, self.names, self.close = inner.put, inner.names, inner.close

    @property
    def changes_outside(self) -> bool:
        """See `Registry.changes_outside`."""
        return self._inner.changes_outside

    def get(self, reference: str) -> Manifest:
        """See `Registry.get`."""
        name, text = split_reference(reference)
        manifest = self._inner.get(name)
        if text:
            _versions_of(manifest).version_of(text)
        return manifest

    def raw(self, reference: str) -> dict[str, Any]:
        """See `Registry.raw`."""
        if "@" in reference:
            self.get(reference)
        return self._inner.raw(name_of(reference))

    def find(self, reference: str) -> Entry:
        """See `Registry.find`."""
        manifest = self.get(reference)
        return Entry(manifest.name, manifest)

    def versions(self, name: str) -> Versions:
        """See `Registry.versions`."""
        try:
            return _versions_of(self._inner.get(name))
        except ManifestError:  # a manifest that cannot be read can be removed all the same
            return Versions(name, ("",), {PLAIN: Alias("")})

    def rows(self) -> list[str]:
        """See `Registry.rows`."""
        return self._inner.names()

    def switch(self, name: str, label: str, version: str) -> Versions:
        """See `Registry.switch`. Raises NotSupportedError: nothing can be switched to."""
        del label, version
        raise self._refused(name)

    def remove_label(self, name: str, label: str) -> Versions:
        """See `Registry.remove_label`."""
        return self.versions(name).without_label(label)

    def remove(self, reference: str) -> None:
        """See `Registry.remove`."""
        self.remove_version(reference)

    def remove_version(self, reference: str, *, every: bool = False) -> None:
        """See `Registry.remove_version`."""
        name, text = split_reference(reference)
        if text and every:
            raise CallerError(f"{reference!r} names a version; all are removed by the plain name")
        if text:
            self.get(reference)
        self._inner.remove(name)

    def _refused(self, name: str) -> NotSupportedError:
        return NotSupportedError(f"{name!r} has one version: {self._where} keeps one of each model, and no labels")


def _versions_of(manifest: Manifest) -> Versions:
    return Versions(manifest.name, (manifest.version,), {PLAIN: Alias(manifest.version)})
