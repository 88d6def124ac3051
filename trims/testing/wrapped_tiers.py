"""Tiers round others that fail, wait or count: they stage what a real tier does rarely."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.core.place import Place
    from trims.tiers.base import Draft, Extent, Tier


class WrappedTier:
    """A tier round another; subclasses add faults, delays or counting."""

    def __init__(self, inner: Tier) -> None:
        self.inner = inner

    @property
    def place(self) -> Place:
        """Return the inner tier's place."""
        return self.inner.place

    @property
    def capacity_bytes(self) -> int:
        """Return the inner tier's capacity."""
        return self.inner.capacity_bytes

    @property
    def hash_on_adoption(self) -> bool:
        """Return the inner tier's `hash_on_adoption`."""
        return self.inner.hash_on_adoption

    @property
    def skipped(self) -> int:
        """Return the inner tier's count."""
        return self.inner.skipped

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """See `Tier.create`."""
        return self.inner.create(key, generation, nbytes, allocate=allocate)

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """See `Tier.seal`."""
        return self.inner.seal(draft, key, digest)

    def abort(self, draft: Draft) -> None:
        """See `Tier.abort`."""
        self.inner.abort(draft)

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """See `Tier.explain`."""
        return self.inner.explain(error, nbytes)

    def free(self, extent: Extent) -> None:
        """See `Tier.free`."""
        self.inner.free(extent)

    def scan(self) -> Iterator[Extent]:
        """See `Tier.scan`."""
        return self.inner.scan()

    def leave(self, extent: Extent) -> None:
        """See `Tier.leave`."""
        self.inner.leave(extent)

    def verify(
        self, extent: Extent, cancelled: threading.Event | None = None, pace: Callable[[int], None] | None = None
    ) -> None:
        """See `Tier.verify`."""
        self.inner.verify(extent, cancelled, pace)

    def close(self) -> None:
        """See `Tier.close`."""
        self.inner.close()


class FaultyTier(WrappedTier):
    """Raises what the test put into `faults` under the name of the method, once."""

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self.faults: dict[str, Exception] = {}

    def _maybe(self, method: str) -> None:
        if method in self.faults:
            raise self.faults.pop(method)

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """Fail before anything is made."""
        self._maybe("create")
        return super().create(key, generation, nbytes, allocate=allocate)

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """Fail as the contract says: the draft is used up."""
        if "seal" in self.faults:
            self.inner.abort(draft)
            self._maybe("seal")
        return super().seal(draft, key, digest)

    def verify(
        self, extent: Extent, cancelled: threading.Event | None = None, pace: Callable[[int], None] | None = None
    ) -> None:
        """Fail before anything is read."""
        self._maybe("verify")
        super().verify(extent, cancelled, pace)


class SlowTier(WrappedTier):
    """Stops inside `create` until the test lets it go on: stages races instead of hoping for them."""

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """Report that it was entered, then wait."""
        self.entered.set()
        assert self.go_on.wait(60), "the test forgot to let the tier go on"
        return super().create(key, generation, nbytes, allocate=allocate)
