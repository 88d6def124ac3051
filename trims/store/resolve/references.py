"""References: names whose manifests have another model's artifact (`artifact: {model: NAME}`), such as functions.

An open of such a name is an open of the model: nothing is kept in the catalog under the name itself, so it follows the
model when that is replaced. A reference leads to a model that has an artifact of its own, so there are no circles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import ManifestError, ModelNotFoundError, TrimsError
from trims.store.resolve.by_model import ByModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.manifests.manifest import Manifest
    from trims.registry.base import Registry
    from trims.registry.versions import Entry


class References:
    """References of one registry, and what is remembered of them.

    Args:
        trust_s: Seconds for which a remembered reference is followed without another look.

    Attributes:
        known: Name -> the model, and when the manifest was read.
    """

    def __init__(self, registry: Registry, clock: Callable[[], float], trust_s: float) -> None:
        self._registry = registry
        self._clock = clock
        self._trust_s = trust_s
        self.known: ByModel[tuple[str, float]] = ByModel()

    def of(self, name: str) -> str:
        """Return the model that a name referred to at the last look, else the name. Memory only: never blocks."""
        known = self.known.get(name)
        return name if known is None else known[0]

    def fresh(self, name: str) -> str:
        """Return as `of`, but the name for a look that is too long ago. Memory only: never blocks."""
        known = self.known.get(name)
        return name if known is None or self._clock() - known[1] >= self._trust_s else known[0]

    def remember(self, name: str, target: str) -> None:
        """Remember what a manifest says that was just read."""
        self.known[name] = (target, self._clock())

    def forget(self, model: str) -> None:
        """Forget a name in all its versions: a manifest or an alias changed, or went."""
        self.known.drop_model(model)

    def target(self, name: str) -> str:
        """Return the model that a name refers to, as its manifest names it; else the name. Raises as `followed`."""
        manifest = self._registry.find(name).manifest
        if manifest.artifact.model is None:
            return name
        self.referred(manifest)
        return manifest.artifact.model

    def followed(self, name: str) -> Entry:
        """Return the version of the model that a name refers to; else that of the name.

        Raises ModelNotFoundError for a name that is not registered, or refers to such a one; ManifestError for one that
        refers to a reference, or whose manifest cannot be read.
        """
        entry = self._registry.find(name)
        return entry if entry.manifest.artifact.model is None else self.referred(entry.manifest)

    def referred(self, manifest: Manifest) -> Entry:
        """Return the version of the model that a manifest refers to. Raises as `followed`."""
        name, model = manifest.name, str(manifest.artifact.model)
        try:
            found = self._registry.find(model)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(
                f"{name!r} has the artifact of {model!r}, which is not registered; register that (`trims add`), or "
                f"remove {name!r} (`trims rm {name}`)"
            ) from error
        if found.manifest.artifact.model is not None:
            raise ManifestError(
                f"{name}: artifact: {model!r} has no artifact of its own, but that of "
                f"{found.manifest.artifact.model!r}; name that one"
            )
        return found

    def entry_of(self, manifest: Manifest) -> Entry | None:
        """Return the version of the model that a manifest refers to; None if there is none, or it cannot be had."""
        try:
            return None if manifest.artifact.model is None else self.referred(manifest)
        except TrimsError:
            return None
