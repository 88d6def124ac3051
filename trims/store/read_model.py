"""The store for reading: views for status, ps, show, check and metrics. Nothing here changes anything.

Every view is a copy that was made under the lock of the books, so that its figures belong to one moment. A list of all
replicas is made in pieces, because opens wait for the lock: each replica is of one moment, the list is not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trims.core.errors import DrainingError, InvariantError
from trims.core.place import CPU
from trims.core.replica import ReplicaId, State
from trims.core.residency.placement import Verdict
from trims.image.peek import why_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trims.core.place import Place
    from trims.core.replica import Replica
    from trims.core.residency.residency import Residency
    from trims.manifests.manifest import Manifest
    from trims.manifests.serving import Signature
    from trims.sources.process.fetcher import Running
    from trims.store.catalog import Catalog
    from trims.store.fill.runner import Runner
    from trims.store.resolve.resolver import Resolver
    from trims.store.shell import Shell
    from trims.tiers.base import Extent

#: Replicas that are copied while the lock is held once: a fraction of a millisecond.
_PIECE = 256

#: Images whose programs were looked into.
_MOST_WHY = 4096


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica.

    Attributes:
        idle_s: Seconds since its last use; 0 while it is held.
        keep_left_s: Seconds until its keep-alive ends; None if it stays until its room is needed.
        digest: blake3 of the image; empty while it is not sealed.
        location: Where its bytes are, for a person; empty while they are nowhere.
        device: UUID of the device it lies on, if any.
        leases_by_session: How many leases each session holds.
        story: The steps it went through, if they were asked for.
    """

    id: ReplicaId
    state: State
    nbytes: int
    leases: int
    waiters: int
    pinned: bool
    cost_s: float
    uses: int
    idle_s: float
    keep_left_s: float | None
    digest: str
    location: str
    device: str
    names: tuple[str, ...]
    leases_by_session: Mapping[int, int]
    story: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TierView:
    """One tier.

    Attributes:
        charged_bytes: What its replicas take, those that are leaving included.
    """

    place: Place
    capacity_bytes: int
    charged_bytes: int
    replicas: int
    leases: int
    policy: str


@dataclass(frozen=True, slots=True)
class AccountView:
    """Usage of one tenant."""

    name: str
    leases: int
    leased_bytes: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class StoreView:
    """The whole store at one moment.

    Attributes:
        unverified_bytes: What an earlier daemon left and is still to be read and hashed.
        images: Images that are open, each with a descriptor.
    """

    counters: Mapping[str, int]
    tiers: tuple[TierView, ...]
    leases: int
    unverified_bytes: int
    images: int
    draining: bool


@dataclass(frozen=True, slots=True)
class LoadView:
    """Progress of a load.

    Attributes:
        phase: `resolving`, `fetching`, `queued`, `filling`, or the state of the replica.
        fetched_bytes: Bytes that came over a network, now.
        bytes_per_s: Rate of the last seconds over the network.
        left_s: Seconds until the end at this rate; None if that is unknown.
    """

    phase: str
    done_bytes: int = 0
    total_bytes: int = 0
    fetched_bytes: int = 0
    bytes_per_s: float = 0.0
    left_s: float | None = None


@dataclass(frozen=True, slots=True)
class NameView:
    """Facts about a name, from the last look into it.

    Attributes:
        key: Image key; empty if the name was never looked into.
        format: Format of the artifact; empty if nothing looked since the daemon's start; see `ReadModel.format_of`.
        nbytes: Length of the image; 0 if it was never made.
        in_place: Key under which the artifact's own files are served; None if they are not.
        files: Known files of the artifact, the main one first; empty if the name was never looked into.
    """

    key: str = ""
    format: str = ""
    nbytes: int = 0
    in_place: str | None = None
    files: tuple[Path, ...] = ()


class ReadModel:
    """Views of one store.

    Args:
        shell: Has the lock of the books, and what is remembered of images.
    """

    def __init__(
        self,
        *,
        residency: Residency,
        shell: Shell,
        runner: Runner,
        catalog: Catalog,
        resolver: Resolver,
        counters: Counter[str],
        clock: Callable[[], float],
    ) -> None:
        self._residency = residency
        self._lock = shell.lock
        self._image = shell.image
        self._runner = runner
        self._catalog = catalog
        self._resolver = resolver
        self._counters = counters
        self._clock = clock
        #: Reason that an image's program gives, by its key: read once, since a look must not bring files to memory.
        self._why: dict[str, str] = {}

    # -- replicas --------------------------------------------------------------------------------------------------

    def replicas(self) -> list[ReplicaView]:
        """Return all replicas: fastest place first, then largest first."""
        with self._lock:
            ids = list(self._residency.replicas)
        views: list[ReplicaView] = []
        for begin in range(0, len(ids), _PIECE):
            with self._lock:
                here = [self._residency.find(*where) for where in ids[begin : begin + _PIECE]]
                views += [self._view(found) for found in here if found is not None]
        views.sort(key=lambda it: (it.id.place.tier.rank, it.id.place.device, -it.nbytes, it.id.key))
        return views

    def replicas_of(self, image: NameView, *, story: bool = False) -> list[ReplicaView]:
        """Return all replicas of an image, fastest place first, and the artifact's own files if they are served."""
        keys = [image.key] if image.in_place in (None, image.key) else [image.key, image.in_place]
        with self._lock:
            found = [self._view(each, story=story) for key in keys for each in self._residency.places_of(key)]
        return [self._with_reason(each) for each in found] if story else found

    def _with_reason(self, view: ReplicaView) -> ReplicaView:
        """Add to a replica's history why its image is not what its converter makes of other models, if it is not."""
        why, extent = self._why.get(view.id.key), self._runner.sealed.get(view.id)
        if why is None:
            if extent is None or extent.fd < 0:
                return view
            try:
                with extent.reader() as fd:
                    why = why_of(fd, extent.nbytes)
            except (DrainingError, OSError):  # it has just gone
                return view
            while len(self._why) >= _MOST_WHY:
                self._why.pop(next(iter(self._why)), None)
            self._why[view.id.key] = why
        return replace(view, story=(*view.story, why)) if why else view

    def replica(self, key: str, place: Place) -> ReplicaView | None:
        """Return one replica, in whatever state."""
        with self._lock:
            found = self._residency.find(key, place)
            return None if found is None else self._view(found)

    def _view(self, found: Replica, *, story: bool = False) -> ReplicaView:
        """Return the view of one replica. Call it under the lock."""
        now = self._clock()
        extent = self._runner.sealed.get(found.id)
        sessions = (self._residency.leases.by_number[number].session for number in found.leases)
        return ReplicaView(
            id=found.id,
            state=found.state,
            nbytes=found.nbytes,
            leases=len(found.leases),
            waiters=len(found.waiters),
            pinned=(found.key, found.place) in self._residency.capacity.pins,
            cost_s=found.cost_s,
            uses=found.uses,
            idle_s=0.0 if found.held or not found.last_used_s else now - found.last_used_s,
            keep_left_s=None if found.keep_until_s is None else max(0.0, found.keep_until_s - now),
            digest="" if extent is None else extent.digest,
            location="" if extent is None else _location(extent),
            device="" if extent is None or extent.export is None else extent.export.device,
            names=tuple(self.names_of(found.key)),
            leases_by_session=Counter(sessions) if found.leases else {},
            story=tuple(found.story()) if story else (),
        )

    # -- the whole -------------------------------------------------------------------------------------------------

    def whole(self) -> StoreView:
        """Return counters, tiers and sums."""
        images = len(self._runner.extents())
        with self._lock:
            return StoreView(
                counters=dict(self._counters),
                tiers=tuple(self._tier(place) for place in self._residency.capacity.at),
                leases=len(self._residency.leases.by_number),
                unverified_bytes=self._runner.unverified_bytes,
                images=images,
                draining=self._residency.draining,
            )

    def accounts(self) -> list[AccountView]:
        """Return what each tenant holds now."""
        with self._lock:
            return [
                AccountView(each.name, each.leases, each.leased_bytes, each.resident_bytes)
                for each in self._residency.tenancy.accounts.values()
            ]

    def _tier(self, place: Place) -> TierView:
        books, here = self._residency.capacity.at[place], self._residency.table.by_place[place]
        leases = sum(len(found.leases) for found in here.values())
        return TierView(place, books.capacity_bytes, books.charged_bytes, len(here), leases, books.policy.name)

    @property
    def draining(self) -> bool:
        """Return whether the daemon takes no new requests."""
        return self._residency.draining

    # -- names -----------------------------------------------------------------------------------------------------

    def image_of(self, name: str) -> NameView:
        """Return what a name that is no reference stands for, as far as that is known without looking into it."""
        known = self._resolver.remembered(name)
        key = known.key if known else self._catalog.key_of(name) or ""
        record = self._catalog.image(key) if key else None
        nbytes = record.nbytes if record else 0
        if known is None:
            return NameView(key, "", nbytes)
        return NameView(key, known.artifact.format, nbytes, known.in_place, known.artifact.files)

    def format_of(self, row: str, manifest: Manifest) -> str:
        """Return the format of a version's artifact as far as it is known without looking into it, else empty text."""
        return self._resolver.format_known(row, manifest)

    def signature_of(self, image: NameView) -> Signature:
        """Return inputs and outputs of the model of an image; empty if they are not known."""
        return self._resolver.signatures.of(image.key)

    def keys_of(self, name: str) -> list[str]:
        """Return the keys of a name's image, as last looked into, and of its artifact's files."""
        image = self.image_of(name)
        return [key for key in (image.key, image.in_place) if key]

    def in_memory(self, image: NameView) -> str:
        """Return whether an image is in shared memory, and why it is or is not, in a sentence."""
        with self._lock:
            found = self._residency.in_memory(image.key, image.in_place)
            failure = self._residency.failure_of(image.key)
        if found in (Verdict.THERE, Verdict.COMING):
            return f"yes: {found.value}"
        if found is Verdict.EARNED:
            return "no: its next open has it copied there"
        if found in (Verdict.FAILED, Verdict.PUT_OFF) and failure is not None:
            left_s = max(0.0, failure.not_before_s - self._clock())
            when = f"an open after {left_s:.0f} s" if left_s else "its next open"
            return f"no: {found.value}: {failure.error} (tried again by {when})"
        if found is Verdict.RARELY_OPENED:
            return (
                "no: one open reads it from its file; a second one soon after has it copied to memory, and "
                "`trims load --place cpu` does so now"
            )
        return f"no: {found.value}"

    def names_of(self, key: str) -> list[str]:
        """Return all names that stand for an image."""
        names = self._catalog.names_of(key)
        if names:
            return names
        image = self._image(key)  # an artifact that is served in place has no image in the catalog
        return [] if image is None or image.in_place != key else [image.name]

    def load(self, name: str, place: Place | None) -> LoadView:
        """Return how far a running load is; `place` None stands for the place that the manifest says."""
        running = self._fetching(name)
        if running is not None:
            moved = running.moved
            return LoadView(
                "fetching", moved.done_bytes, moved.total_bytes, moved.fetched_bytes, running.rate, running.left_s
            )
        known = self._resolver.remembered(self._resolver.references.fresh(name))
        if known is None:
            return LoadView("resolving")
        where = place or known.manifest.residency.place or CPU
        there = [each for each in self._residency.places_of(known.key) if each.place.is_in(where)]
        found = next((each for each in there if each.state is State.FILLING), there[0] if there else None)
        if found is None or found.state is not State.FILLING:
            return LoadView(found.state.value if found else "queued")
        progress = self._runner.progress(known.key, found.place)
        return LoadView("filling", progress.done_bytes if progress else 0, found.nbytes)

    def _fetching(self, name: str) -> Running | None:
        """Return the transfer of the files that a name's manifest gives the address of; None if none runs."""
        remote = self._resolver.remote
        if remote is None or remote.is_idle:
            return None
        uri = self._resolver.manifest(name).artifact.uri
        return None if uri is None else remote.progress(uri)

    # -- checks ----------------------------------------------------------------------------------------------------

    def broken_invariants(self) -> list[str]:
        """Return which rules the ledger breaks. The check runs in pieces: opens are served between two of them."""
        with self._lock:
            pieces = list(self._residency.checks())
        broken = []
        for piece in pieces:
            with self._lock:
                try:
                    piece()
                except InvariantError as error:
                    broken.append(str(error))
        return broken

    def sealed(self) -> list[tuple[ReplicaId, int]]:
        """Return all sealed replicas, and their lengths."""
        with self._lock:
            return [(it.id, it.nbytes) for it in self._residency.replicas.values() if it.state is State.SEALED]

    def is_sealed(self, replica: ReplicaId) -> bool:
        """Return whether this very replica is still sealed."""
        with self._lock:
            found = self._residency.find(replica.key, replica.place)
            return found is not None and found.id == replica and found.state is State.SEALED

    def extent(self, replica: ReplicaId) -> Extent | None:
        """Return the memory of a sealed replica. Read it by `Extent.reader`: it may be given back at any moment."""
        return self._runner.sealed.get(replica)


def _location(extent: Extent) -> str:
    if extent.export is None:
        return extent.label
    return f"image {extent.label} of the keeper of {extent.export.device}, shared by {extent.export.driver}"
