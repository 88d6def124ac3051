"""ResidencyOptions: what a model's manifest and the daemon's settings add to an open that itself says only a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trims.core.residency.events import KeepAlive

if TYPE_CHECKING:
    from trims.store.resolve.resolved import Resolved


class ResidencyOptions(NamedTuple):
    """Residency options of one model, computed once for each look into a name, not once for each open of it.

    Attributes:
        resolved: The look that they follow from.
        kept: An image on disk is kept of it in any case.
        keep: How long the image stays in memory once it is idle.
    """

    resolved: Resolved
    kept: bool
    keep: KeepAlive

    @classmethod
    def of(cls, resolved: Resolved, keep_alive_s: float | None) -> ResidencyOptions:
        """Compute the options. `keep_alive_s` counts for a model whose manifest states none."""
        stated = resolved.manifest.residency
        keep = KeepAlive(stated.keep_alive_s if stated.keep_alive_s is not None else keep_alive_s)
        return cls(resolved, is_kept(resolved), keep)


def is_kept(resolved: Resolved) -> bool:
    """Return whether a disk image of the model is kept in any case."""
    persist = resolved.manifest.residency.persist
    return persist == "always" or (persist == "auto" and resolved.converted)
