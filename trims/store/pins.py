"""Pins: which names are pinned where, kept over restarts, and which images that pins now.

A pin belongs to a name. What is pinned in residency is the image the name stands for just now, at that place; an image
is pinned for as long as one of its names is. Operators pin and unpin; a manifest's `pin: true` pins at the manifest's
own place until an operator unpins it there.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims.core.errors import CallerError
from trims.core.place import CPU, FILE, Place
from trims.core.policy import capacity_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from trims.core.errors import TrimsError
    from trims.store.catalog import Catalog
    from trims.store.resolve.resolved import Resolved
    from trims.store.resolve.resolver import Resolver

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SizesAt:
    """See `hashing.Sizes`: an order names the place, and is refused with the error itself.

    Args:
        never_fits: Says why an image of at least so many bytes can never lie at the place; None if it may.
    """

    never_fits: Callable[[int], TrimsError | None]

    def may_refuse(self, nbytes: int, stated: Place | None) -> bool:  # noqa: ARG002 - the order's place counts
        """See `Sizes.may_refuse`."""
        return self.never_fits(nbytes) is not None

    def refuse(self, nbytes: int, stated: Place | None) -> None:  # noqa: ARG002
        """See `Sizes.refuse`."""
        error = self.never_fits(nbytes)
        if error is not None:
            raise error


class Pins:
    """All pins of a daemon.

    Args:
        catalog: Keeps them between lives.
        resolver: Knows the epoch of a name.
        places: The places this daemon has.
        changed: Called with key, place and whether the image is pinned there now.
    """

    def __init__(
        self,
        catalog: Catalog,
        resolver: Resolver,
        places: Collection[Place],
        changed: Callable[[str, Place, bool], None],
    ) -> None:
        self._catalog = catalog
        self._resolver = resolver
        self._places = places
        self._changed = changed
        self._lock = threading.Lock()
        self._keys: dict[str, str] = {}

    def restore(self) -> None:
        """Pin again what was pinned when the last daemon ended; pins at places that are away now are kept for later."""
        for name, text in self._catalog.pins():
            place = _place(text)
            if place is None or place not in self._places:
                log.warning("%s is pinned at %s, which this daemon does not have: kept for when it is back", name, text)
                continue
            key = self._catalog.key_of(name)
            if key is not None:
                self._keys[name] = key
                self._changed(key, place, True)

    def set(self, name: str, key: str, place: Place, *, pinned: bool) -> None:
        """Pin or unpin for an operator. Raises NotSupportedError for a place without pins, TrimsError if not kept."""
        self.check(place)
        self._catalog.pin(name, str(place), pinned=pinned)
        with self._lock:
            before = self._keys.get(name)
            self._keys[name] = key  # the pin moves along when the name comes to stand for another image
        self._moved(name, before, key)

    def check(self, place: Place) -> None:
        """Raise NotSupportedError if nothing can be pinned at the place."""
        if place not in self._places:
            raise capacity_errors.no_such_place(place, self._places)
        if place is FILE:
            raise capacity_errors.no_pins(place, self._places)

    def stated(self, resolved: Resolved, epoch: int) -> None:
        """Pin a model that is opened if its manifest says so; what its name stands for may have changed.

        If its new files were not read yet, the old image is pinned no longer, and no other is until they were.
        """
        keep, name = resolved.manifest.residency, resolved.name
        wanted = keep.place or CPU
        with self._lock:
            if self._resolver.epoch(name) != epoch:
                return  # the manifest went or changed meanwhile
            before = self._keys.get(name)
            stated = [place for place in self._places if keep.pin and place.is_in(wanted)]
            fresh = [place for place in stated if self._catalog.pinned(name, str(place)) is None]
            if before == resolved.key and not fresh:
                return
            self._keys[name] = resolved.key
            for place in fresh:
                self._catalog.remember_pin(name, str(place))
        self._moved(name, before, resolved.key)

    def forget(self, name: str) -> None:
        """Forget a name that is registered no more; its epoch has risen.

        Raises TrimsError if that cannot be written.
        """
        with self._lock:  # waits for a request of the earlier epoch that is pinning now; a later request pins nothing
            keys = {self._keys.pop(name, None), self._catalog.key_of(name)} - {None}
        self._catalog.forget(name)
        for place in self._places:
            for key in keys:
                self._apply(str(key), place)

    def rename(self, before: str, row: str) -> None:
        """Keep the pins of a version under another row. Raises TrimsError if that cannot be written."""
        with self._lock:
            self._catalog.rename(before, row)
            if before in self._keys:
                self._keys[row] = self._keys.pop(before)

    def is_pinned(self, name: str) -> bool:
        """Return whether the name is pinned at any place, whatever image it stands for. Memory only."""
        return any(self._catalog.pinned(name, str(place)) for place in self._places)

    def _moved(self, name: str, before: str | None, now: str) -> None:
        for place in self._places:
            if self._catalog.pinned(name, str(place)) is not None:
                for key in {before, now} - {None}:
                    self._apply(str(key), place)

    def _apply(self, key: str, place: Place) -> None:
        # The catalog keeps the last image of a name whose new files were not read yet: the name pins it no longer.
        names = [name for name in self._catalog.names_of(key) if self._keys.get(name, key) == key]
        pinned = any(self._catalog.pinned(name, str(place)) for name in names)
        self._changed(key, place, pinned)


def _place(text: str) -> Place | None:
    try:
        return Place.parse(text)
    except CallerError:
        return None
