"""Pulls and pushes of models, as operators order them: from the address of a manifest, and to one."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import (
    CallerError,
    DeadlineError,
    InternalError,
    InUseError,
    ManifestError,
    NotSupportedError,
    TooLargeError,
    TrimsError,
)
from trims.core.place import CPU, DISK
from trims.core.units import format_bytes
from trims.manifests.addresses import address_identity, check_address, scheme_of, without_secret
from trims.manifests.foreign import foreign_fields, foreign_manifest, portable_fields, portable_recipe
from trims.registry.base import parse_yaml
from trims.sources.descriptor import ImageDescription, image_address
from trims.sources.files import address_in
from trims.sources.lock import portable
from trims.store.pending_requests import Granted, Pending
from trims.store.resolve.addresses import cloud_image

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from trims.core.place import Place
    from trims.daemon.sources import Sources
    from trims.manifests.manifest import Manifest
    from trims.registry.base import Registry
    from trims.registry.versions import Entry
    from trims.sources.process.fetcher import Moved, Running
    from trims.sources.remote import Fetched
    from trims.store.store import Store

log = logging.getLogger(__name__)
_MANIFEST_BYTES = 1 << 20
_LOOK_S = 0.1
#: Schemes that can be pushed to.
PUSHED = ("s3", "gs", "az", "abfs", "abfss")


@dataclass(frozen=True)
class Pulling:
    """A pull that runs in a thread of its own.

    Attributes:
        pending: Outcome to come: what an order to load ends in.
        stop: Set when no client waits for it any more.
    """

    pending: Pending
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass
class Pushing:
    """A push that runs in a thread of its own.

    Attributes:
        moved: Progress; None before the first byte.
        over: Set at its end.
    """

    moved: Moved | None = None
    over: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    note: str = ""


class Transfers:
    """Pulls and pushes of one daemon."""

    def __init__(self, store: Store, registry: Registry, sources: Sources) -> None:
        self._store, self._registry, self._sources = store, registry, sources
        self._lock = threading.Lock()
        #: Pulls that run, by row.
        self._pulls: Counter[str] = Counter()
        #: Epoch of each row that a client pulled to the end.
        self._done: dict[str, int] = {}

    def manifest_at(self, address: str) -> dict[str, Any]:
        """Return the manifest at an address, as it may be registered here. Blocks.

        Raises ManifestError, AddressRefusedError, and as `Fetcher.do`.
        """
        check_address(address)
        order = {"address": address, "named": True, "most_bytes": _MANIFEST_BYTES}
        found = self._sources.fetcher.do("read", order)
        try:
            return foreign_manifest(parse_yaml(found["text"]), address)
        except ManifestError as error:
            raise ManifestError(f"the manifest at {address}: {error}") from error

    # -- pull ------------------------------------------------------------------------------------------------------

    def pull(
        self, name: str, *, update: bool, prove: bool = False, forget: Callable[[], None] | None = None
    ) -> Pulling:
        """Have what lies at the address of a model's manifest fetched and made ready; return what to wait on.

        Args:
            update: Take what lies there now, also if it was something else before.
            prove: Hash also the files that lay in a hub's cache already.
            forget: Called if the pull fails, or no client waits for it any more, and nothing else asks for the model.

        Raises CallerError for a model without an address.
        """
        entry = self._registry.find(name)
        name, uri = entry.row, entry.manifest.artifact.uri
        if uri is None:
            raise CallerError(f"{name} is not fetched from anywhere: its manifest names no address (`artifact.uri`)")
        pulling = Pulling(Pending())
        with self._lock:
            self._pulls[name] += 1
        work = (pulling, name, uri, partial(self._pulled_now, pulling, name, uri, update, prove), forget)
        threading.Thread(target=self._pull, args=work, name="trims-pull", daemon=True).start()
        return pulling

    def _pull(
        self, pulling: Pulling, name: str, uri: str, do: Callable[[], Any], forget: Callable[[], None] | None
    ) -> None:
        outcome: Any
        try:
            outcome = do()
        except TrimsError as error:
            outcome = error
        except Exception as error:
            log.exception("the pull of %s failed", name)
            outcome = InternalError(f"{type(error).__name__}: {error}")
        with self._lock:
            self._pulls[name] -= 1
        given_up = isinstance(outcome, TrimsError) or pulling.stop.is_set()
        if not given_up:
            self._done[name] = self._store.resolver.epoch(name)
        if forget is not None and given_up and not self._is_wanted(name, uri):
            try:
                forget()
            except TrimsError as error:  # removed by an operator meanwhile
                log.info("%s was not forgotten: %s", name, error)
        pulling.pending.set(outcome)

    def _is_wanted(self, name: str, uri: str) -> bool:
        """Return whether another client pulls or has pulled a model, fetches its address or reads it."""
        if self._done.get(name) == self._store.resolver.epoch(name):
            return True
        if self._pulls[name] or self._sources.remote.progress(uri) is not None:
            return True
        return any(view.leases for view in self._store.read.replicas_of(self._store.read.image_of(name)))

    def _pulled_now(self, pulling: Pulling, name: str, uri: str, update: bool, prove: bool) -> Any:
        manifest, remote = self._registry.get(name), self._sources.remote
        origin, stated, before = manifest.origin, manifest.artifact.sha256, remote.seen(uri)
        found = None if update else remote.here(uri, origin=origin, stated=stated, prove=prove)
        if found is None:
            found = remote.fetch(
                uri,
                origin=origin,
                stated=stated,
                update=update,
                prove=prove,
                wanted=lambda: not pulling.stop.is_set(),
            )
        if update:
            self._changed(uri)
        if found.image is not None:
            self._take_fields(name, found.image)
        if refusal := self._store.find_refusal(self._registry.get(name)):
            raise NotSupportedError(refusal)
        return self._opened(pulling, name, uri, before if update else None)

    def _opened(self, pulling: Pulling, name: str, uri: str, before: Mapping[str, Any] | None) -> Any:
        """Make a model ready. If it cannot be, what was known of its address `before` an update is known again."""
        pending = Pending()
        self._store.open(name, pending.set, lease=False, hint=True)
        try:
            while not pending.done(_LOOK_S):
                if pulling.stop.is_set():
                    raise DeadlineError(f"no client waits for the pull of {name} any more")
            return pending.result()
        except TrimsError:
            if before is not None:
                self._sources.remote.put_back(uri, before)
                self._changed(uri)
            raise

    def _changed(self, uri: str) -> None:
        """Have all models of an address looked at again."""
        for name in self._named(uri):
            self._store.manifest_changed(name)

    def _named(self, uri: str) -> list[str]:
        """Return the models whose manifests name an address, perhaps signed in another way."""
        known = address_identity(uri)
        return [row for row in self._registry.rows() if _address_of(self._registry, row) == known]

    def _take_fields(self, name: str, image: ImageDescription) -> None:
        """Take over what a pushed image says of its model, where the manifest here says nothing."""
        manifest, raw = self._registry.get(name), self._registry.raw(name)
        fields = foreign_fields(image.manifest, str(manifest.artifact.uri), manifest.origin)
        more = {field: value for field, value in fields.items() if field not in raw}
        if len(self._registry.versions(manifest.name).registered) > 1:
            more.pop("version", None)  # it would be another one
        if more:
            self._registry.put({**raw, **more}, manifest.origin, replace=True)
            self._store.manifest_changed(name)

    def pulled(self, name: str) -> str:
        """Return in words what a pull has found."""
        uri = self._registry.get(name).artifact.uri
        found = None if uri is None else self._sources.remote.here(uri)
        return "" if found is None else "; ".join((_words(found), *found.notes))

    def locked(self, name: str) -> str:
        """Return what the lock file says of the address of a model, as JSON that holds on any machine; else nothing."""
        uri = self._registry.get(name).artifact.uri
        entry = None if uri is None else self._sources.remote.seen(uri)
        return "" if entry is None else json.dumps(portable(entry), sort_keys=True)

    def running(self) -> list[Running]:
        """Return the transfers that run."""
        return self._sources.fetcher.running()

    def damaged(self) -> dict[str, str]:
        """Return what is wrong with each address whose files are not what their source states."""
        return {without_secret(found.address): found.damage() for found in self._sources.remote.damaged()}

    def counts(self) -> dict[str, int]:
        """Return how many jobs, failures and bytes there were since the start."""
        return self._sources.fetcher.counts()

    # -- push ------------------------------------------------------------------------------------------------------

    def push(self, name: str, address: str, *, replace: bool = False) -> Pushing:
        """Begin to write a model's image to an address, with `replace` also where another model lies.

        Raises CallerError, NotSupportedError.
        """
        address = check_address(address)
        if scheme_of(address) not in PUSHED:
            raise NotSupportedError(f"models are pushed to {', '.join(f'{each}://' for each in PUSHED)}, not {address}")
        entry, pushing = self._registry.find(name), Pushing()
        if (model := entry.manifest.artifact.model) is not None:
            raise CallerError(f"{name!r} has the artifact of {model!r} and no image of its own; push {model!r}")
        work = (pushing, entry, address, replace)
        threading.Thread(target=self._run, args=work, name="trims-push", daemon=True).start()
        return pushing

    def _run(self, pushing: Pushing, entry: Entry, address: str, replace: bool) -> None:
        try:
            self._push(pushing, entry, address, replace)
        except BaseException as error:  # noqa: BLE001 - raised to who waits
            pushing.error = error
        finally:
            pushing.over.set()

    def _push(self, pushing: Pushing, entry: Entry, address: str, replace: bool) -> None:
        session = self._store.begin_session()
        try:
            granted = self._lease(entry.row, session)
            fields, left = portable_fields(self._registry.raw(entry.row), entry.manifest.origin)
            described = self._described(entry, granted, fields)
            order = {"address": address, "nbytes": granted.nbytes, "image": described, "replace": replace}

            done = self._sent(pushing, order, granted.fd)
        finally:
            self._store.end_session(session)
        image = ImageDescription(**done["image"])
        self._sources.remote.remember_image(address, image)
        known = self._sources.remote.here(address)
        assert known is not None, "it was remembered a moment ago"
        self._store.know_in_cloud(cloud_image(known))
        written = "was there already" if done["was_there"] else format_bytes(image.nbytes)
        stayed = f"; {', '.join(left)} of its manifest name files or code here, and were left out" if left else ""
        pushing.note = f"image {image.digest[:12]} {written} at {address}{stayed}"

    def _sent(self, pushing: Pushing, order: Mapping[str, Any], fd: int) -> dict[str, Any]:
        """Have an image written. Its object is noted until it is whole, or its parts were taken back."""
        target, fetcher = image_address(order["address"], order["image"]["file"]), self._sources.fetcher
        pids = {fetcher.pid} - {None}

        def report(moved: Moved) -> None:
            pushing.moved = moved
            pids.add(fetcher.pid)

        self._sources.pushes.begin(target)
        whole = False
        try:
            done = fetcher.do("push", order, fds=[fd], wanted=lambda: not pushing.stop.is_set(), on_moved=report)
            whole = len(pids) < 2  # else a process was killed on the way, and may have left parts
        finally:
            self._sources.pushes.end(target, whole=whole)
        return done

    def _lease(self, name: str, session: int) -> Granted:
        """Lease an image of a model on the host: where it lies, else in memory, else on disk."""
        key = self._store.read.image_of(name).key
        there = {view.id.place for view in self._store.read.replicas_of(self._store.read.image_of(name)) if key}
        places = [place for place in (DISK, CPU) if place in there] or [CPU, DISK]
        for place in places:
            try:
                return self._lease_at(name, session, place)
            except TooLargeError:
                if place is places[-1]:
                    raise
        raise InternalError("there is always a place to try")

    def _lease_at(self, name: str, session: int, place: Place) -> Granted:
        pending = Pending()
        self._store.open(name, pending.set, session=session, place=place)
        granted = pending.result()
        assert isinstance(granted, Granted), "an open asks for a lease"
        return granted

    def _described(self, entry: Entry, granted: Granted, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the description of an image, but for its checksums."""
        record = self._store.catalog.image(granted.key)
        format_ = self._store.read.format_of(entry.row, entry.manifest) or "safetensors"
        return {
            "name": entry.manifest.name,
            "key": granted.key,
            "digest": granted.digest,
            "nbytes": granted.nbytes,
            "file": f"{granted.key[:16]}.{granted.digest}.safetensors",
            "format": format_,
            "recipe": portable_recipe(record.recipe) if record is not None else {"format": format_},
            "manifest": fields,
            "signature": self._store.catalog.signature_of(granted.key) or "",
            "cost_s": record.cost_s if record is not None else 0.0,
        }

    # -- prune -----------------------------------------------------------------------------------------------------

    def give_up_pushes(self, *, dry_run: bool) -> list[str]:
        """Have stores remove the parts of pushes that were killed. Return the addresses of their objects.

        With `dry_run` nothing is removed. Where a store refuses, the error stands beside the address, and the next
        prune tries again.
        """
        given_up = []
        for address in self._sources.pushes.left():
            try:
                found = 1 if dry_run else self._given_up(address)
            except TrimsError as error:
                given_up.append(f"{address} (not removed: {error})")
            else:
                given_up += [address] if found else []
        return given_up

    def _given_up(self, address: str) -> int:
        """Return how many uploads of an object were given up."""
        done = self._sources.fetcher.do("give_up", {"address": address, "named": True})
        self._sources.pushes.end(address, whole=True)
        return int(done["uploads"])

    def prune(self, *, dry_run: bool) -> tuple[list[str], int]:
        """Remove downloads of addresses that no registered manifest names, whole or begun.

        Return the folders and their bytes.

        With `dry_run` nothing is removed.

        Readers that have the files open keep them. Nothing in a hub's cache is removed.
        """
        remote, named = self._sources.remote, {_address_of(self._registry, row) for row in self._registry.rows()}
        if not remote.is_idle and not dry_run:
            raise InUseError("a transfer runs, and may write where this would remove; ask again when it has ended")
        unused = [(folder, nbytes) for folder, nbytes in remote.downloads.sets() if not self._has(folder, named)]
        for folder, _ in unused if not dry_run else ():
            remote.downloads.remove(folder)
        return [str(folder) for folder, _ in unused], sum(nbytes for _, nbytes in unused)

    def _has(self, folder: Path, named: Collection[str | None]) -> bool:
        """Return whether a registered address has a download: what was found there, or what has come so far."""
        address = address_identity(address_in(folder))
        entry = self._sources.remote.seen(address)
        return address in named and (entry is None or Path(entry.get("folder", folder)) == folder)

    def forgotten(self, manifest: Manifest) -> None:
        """Remove the download of a model that was removed, if no other model has it. Readers keep what they have."""
        uri, remote = manifest.artifact.uri, self._sources.remote
        found = None if uri is None else remote.here(uri)
        if found is None or found.folder is None or found.folder.parent != remote.downloads.folder:
            return
        if not self._named(str(uri)):
            remote.downloads.remove(found.folder)


def _address_of(registry: Registry, name: str) -> str | None:
    """Return the identity of the address that a model's manifest names; None for a model that is not fetched."""
    try:
        uri = registry.get(name).artifact.uri
        return None if uri is None else address_identity(uri)
    except TrimsError:  # removed meanwhile, or it cannot be read: nothing of it is in use
        return None


def _words(found: Fetched) -> str:
    if found.image is not None:
        return f"image {found.image.digest[:12]}, {format_bytes(found.image.nbytes)}"
    nbytes = sum(path.stat().st_size for path in found.files.values())
    proven = [name for name in found.proven if found.stated.get(name)]
    kinds = {kind for name in proven for kind in found.stated[name]}
    counts = (
        (len(proven), f"proven by {', '.join(sorted(kinds))}"),
        (len(found.proven) - len(proven), "recorded, as its source states no checksum"),
        (len(found.files) - len(found.proven), "lay in the hub's cache and are proven behind their first readers"),
    )
    how = " and ".join(f"{count} {what}" for count, what in counts if count)
    return f"{len(found.files)} files, {format_bytes(nbytes)}, {how}, from {found.pinned}"
