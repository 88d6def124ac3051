"""Addresses as files of this machine: fetched once, found again without the network, the same bytes as the first time.

One transfer serves however many ask for an address. Not covered: moving bytes (`fetcher`), and which file of an
address has the weights (the store).
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3

from trims.core.errors import DeadlineError, DigestMismatchError, NoSpaceError, TrimsError, from_code
from trims.manifests.addresses import address_identity, check_address, scheme_of, without_secret
from trims.sources import lock as lock_files
from trims.sources.descriptor import ImageDescription, image_address
from trims.sources.downloads import CAPACITY
from trims.sources.process.fetcher import Running
from trims.sources.transfer.checksums import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trims.sources.downloads import Downloads
    from trims.sources.lock import LockFile
    from trims.sources.process.fetcher import Fetcher

log = logging.getLogger(__name__)
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Fetched:
    """Content of an address, as it was fetched.

    Attributes:
        pinned: Address with its version, as far as its scheme has a way.
        files: Paths on this machine, by name below the address; empty for an image, which has none here.
        folder: Where the files lie under their names.
        pushed: The image was pushed there by this daemon.
        proven: Names of the files whose bytes were hashed by trims. Others lay in a hub's cache already.
        identities: Identity of each file when it was fetched or proven: with another one, it was written since.
        fetched: Names of the files that came over the network just now, or lay here unproven, and were hashed.
        image: The description, if the address is that of a pushed image.
        stated: Checksums of each file that its source states.
        damaged: The sha256 that was found of each file that is not what its source states.
    """

    address: str
    pinned: str
    files: Mapping[str, Path] = field(default_factory=dict)
    digests: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    folder: Path | None = None
    image: ImageDescription | None = None
    pushed: bool = False
    proven: frozenset[str] = frozenset()
    identities: Mapping[str, list[int]] = field(default_factory=dict)
    fetched: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    stated: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    def damage(self) -> str:
        """Return which file is damaged, and what to do; empty if none is known to be."""
        for name, found in self.damaged.items():
            return (
                f"{self.files[name].resolve()} ({name} of {without_secret(self.address)}) is damaged: its sha256 is "
                f"{found}, and its source states {self.stated[name].get('sha256')}; remove that file, and pull again"
            )
        return ""

    @property
    def image_key(self) -> str:
        """Return the key of the image in the books of this machine.

        What a description says of its key cannot be proven, so that of an image that others pushed is made of its
        address and digest: it stands for no other model, whatever its publisher claims.
        """
        assert self.image is not None, "only an image has one"
        if self.pushed:
            return self.image.key
        facts = json.dumps(["pushed", self.image_address, self.image.digest])
        return str(blake3.blake3(facts.encode()).hexdigest())

    @property
    def image_address(self) -> str:
        """Return the address of the image's bytes."""
        assert self.image is not None, "only an image has one"
        return image_address(self.address, self.image.file)


class Remote:
    """Addresses of one daemon. Safe to call from several threads.

    Args:
        downloads: Where files lie whose scheme has no place of its own.
        prove_first: Hash also the files that lay in a hub's cache already, before anything is served from them.
    """

    def __init__(self, fetcher: Fetcher, lock: LockFile, downloads: Downloads, *, prove_first: bool = False) -> None:
        self._fetcher, self._prove_first = fetcher, prove_first
        self.downloads = downloads
        self._lock_file = lock
        self._lock = threading.Lock()
        self._flights: dict[str, _Flight] = {}
        self._notes: dict[str, tuple[str, ...]] = {}

    def here(
        self, address: str, *, origin: str = "", stated: Mapping[str, str] | None = None, prove: bool = False
    ) -> Fetched | None:
        """Return what was fetched from an address, if all of it is still here. Looks at files; uses no network.

        Files that were written since they were fetched are not here: `fetch` proves them again.

        Args:
            stated: Digests that the manifest states. Where what was found then says nothing of one that counts now,
                nothing is here.
            prove: Files that trims has not hashed yet are not here.

        Raises DigestMismatchError if the lock file beside the manifest says otherwise, or the manifest does.
        """
        entry = self._lock_file.get(address)
        found = None if entry is None else _fetched(address, entry)
        if found is None or (found.image is None and not _are_here(found)):
            return None
        if (prove or self._prove_first) and found.files.keys() - found.proven:
            return None
        found = replace(found, notes=self._notes.get(address, ()))
        return found if _is_as(found, _expected(address, None, origin, stated or {})) else None

    def seen(self, address: str) -> Mapping[str, Any] | None:
        """Return what the lock file says of an address; None if it was never fetched."""
        return self._lock_file.get(address)

    def note_damage(self, address: str, damaged: Mapping[str, str]) -> None:
        """Keep, also over restarts, that files are not what their source states, until they are others.

        Args:
            damaged: The sha256 that was found, by name below the address.
        """
        entry = self._lock_file.get(address)
        if entry is not None and damaged:
            files = [{**file, **_mark(damaged.get(file["name"]))} for file in entry["files"]]
            self._lock_file.put(address, {**entry, "files": files})

    def damaged(self) -> Iterator[Fetched]:
        """Return what was fetched, or lay here, and has files that are not what their source states."""
        for address, entry in self._lock_file.entries().items():
            if any("damaged" in file for file in entry.get("files", ())):
                found = _fetched(address, entry)
                if found is not None and _are_here(found):
                    yield found

    def images(self) -> Iterator[Fetched]:
        """Return all pushed images that were found."""
        for address, entry in self._lock_file.entries().items():
            found = _fetched(address, entry)
            if found is not None and found.image is not None:
                yield found

    def fetch(
        self,
        address: str,
        *,
        origin: str = "",
        stated: Mapping[str, str] | None = None,
        named: bool = True,
        update: bool = False,
        prove: bool = False,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Fetched:
        """Fetch what lies at an address, or find it here. Blocks; joins a transfer of the same address that runs.

        Args:
            address: Address of a scheme that is fetched.
            origin: Folder of the manifest that names it, for the lock file beside it.
            stated: Digests by file name that the manifest states (sha256).
            named: An operator named it: its host may be private.
            update: Take what lies there now, also if it was something else before.
            prove: Hash also the files that lay in a hub's cache already.
            wanted: Asked now and then; once false, and for all who joined as well, the transfer stops.

        Raises:
            DigestMismatchError: The content is not what it was when it was first seen, or not what the manifest states.
            DeadlineError: The transfer was not wanted any more.
            TrimsError: Raised by `Opened.fill`.
        """
        check_address(address)
        with self._lock:
            flight = self._flights.get(address)
            begins = flight is None
            if flight is None:
                flight = self._flights[address] = _Flight(Running(without_secret(address), "fetch"))
            flight.wanted.append(wanted)
        if not begins:
            found = flight.wait(wanted)  # which may have begun for a manifest that says less
            return (
                found
                if _is_as(found, _expected(address, None, origin, stated or {}))
                else self.fetch(
                    address, origin=origin, stated=stated, named=named, update=update, prove=prove, wanted=wanted
                )
            )
        try:
            known = self._lock_file.get(address)
            expected = _expected(address, None if update else known, origin, stated or {})
            expected["prove"] = (
                prove or self._prove_first or any("damaged" in file for file in (known or {}).get("files", ()))
            )
            flight.fetched = self._fetch(address, expected, flight, named=named)
        except BaseException as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                del self._flights[address]
            flight.over.set()
        return flight.fetched

    def _fetch(self, address: str, expected: Mapping[str, Any], flight: _Flight, *, named: bool) -> Fetched:
        order = {
            "address": _pinned(address, expected["pinned"]), "expected": expected["files"], "named": named,
            "stated": expected["stated"], "uri": address, "prove": expected["prove"],
        }  # fmt: skip
        answer = self._fetched(order, flight)
        entry = {**_entry(answer), "fetched_at": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        _check_kind(address, expected, answer)
        if answer.get("image") is not None and expected["image"] is not None:
            _check_image(address, expected["image"], answer["image"])
        self._lock_file.put(address, entry)
        found = _fetched(address, entry)
        assert found is not None, "it was written a moment ago"
        if found.folder is not None:
            self.downloads.used(found.folder)
            self.downloads.keep_within(busy=[found.folder, *self._unfinished(address)])
        self._notes[address] = tuple(answer.get("notes", ()))
        for note in self._notes[address]:
            log.warning("%s: %s", without_secret(address), note)
        came = frozenset(file["name"] for file in answer.get("files", ()) if file["found"])
        return replace(found, fetched=came, notes=self._notes[address])

    def _fetched(self, order: Mapping[str, Any], flight: _Flight) -> dict[str, Any]:
        """Have the files fetched; where the disk is full, other downloads make room once."""

        def do() -> dict[str, Any]:
            return self._fetcher.do(
                "fetch",
                order,
                wanted=lambda: any(each() for each in list(flight.wanted)),
                on_moved=flight.running.report,
            )

        try:
            return do()
        except NoSpaceError as error:
            missing = flight.running.moved.total_bytes - flight.running.moved.done_bytes
            busy = self._unfinished("")
            if CAPACITY in str(error):
                made = self.downloads.make_room_within(missing, error.room_bytes or 0, busy)
            else:
                made = self.downloads.make_room(missing, busy)
            if not made:
                raise
            return do()

    def _unfinished(self, mine: str) -> list[Path]:
        """Return the downloads that a transfer may be writing: none if only that of the address `mine` runs."""
        with self._lock:
            flying = {address_identity(address) for address in self._flights} - {address_identity(mine)}
        if not flying:
            return []
        entries = self._lock_file.entries()
        done = {
            Path(entry["folder"]) for address, entry in entries.items() if "folder" in entry and address not in flying
        }
        return [folder for folder, _ in self.downloads.sets() if folder not in done]

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is fetched now."""
        return not self._flights

    def progress(self, address: str) -> Running | None:
        """Return the transfer of an address; None if none runs."""
        flight = self._flights.get(address)
        return None if flight is None else flight.running

    def remember_image(self, address: str, image: ImageDescription) -> None:
        """Keep that an image was pushed to an address."""
        self._lock_file.put(address, {"pinned": address, "image": vars(image), "pushed": True})

    def put_back(self, address: str, entry: Mapping[str, Any]) -> None:
        """Take up again what was known of an address (`seen`), in place of what was found there since."""
        self._lock_file.put(address, entry)

    def forget(self, address: str) -> None:
        """Forget what was found at an address: the next fetch takes what lies there then."""
        self._lock_file.forget(address)


@dataclass(eq=False)
class _Flight:
    """One transfer, for all who wait for it."""

    running: Running
    wanted: list[Callable[[], bool]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    fetched: Fetched | None = None
    error: BaseException | None = None

    def wait(self, wanted: Callable[[], bool]) -> Fetched:
        """Wait for its end. Raises its error, DeadlineError once `wanted()` is false."""
        while not self.over.wait(_LOOK_S):
            if not wanted():
                raise DeadlineError(f"{self.running.address} was not fetched in time; what has come is kept")
        if self.fetched is not None:
            return self.fetched
        assert self.error is not None, "it is over"
        raise from_code(self.error.code, str(self.error)) if isinstance(self.error, TrimsError) else self.error


def _pinned(address: str, pinned: str) -> str:
    """Return the address to ask at. That of a server stays as it is: its query may be a signature, never kept apart."""
    return address if scheme_of(address) in ("http", "https") else pinned or address


def _are_here(found: Fetched) -> bool:
    """Return whether all files are here, and none was written since it was fetched or proven."""
    return bool(found.files) and all(_is_here(path, found.identities.get(name)) for name, path in found.files.items())


def _is_here(path: Path, identity: list[int] | None) -> bool:
    try:
        return path.is_file() if identity is None else lock_files.identity_of(path) == identity
    except OSError:
        return False


def _expected(address: str, entry: Mapping[str, Any] | None, origin: str, stated: Mapping[str, str]) -> dict[str, Any]:
    """Return what must be found at an address: as the lock file beside the manifest says, then the daemon's own."""
    entry = lock_files.beside(origin).get(address_identity(address)) or entry or {}
    files = {file["name"]: {"nbytes": file["nbytes"], "checksums": {**file["checksums"], **file.get("found", {})}}
             for file in entry.get("files", ())}  # fmt: skip
    for name, digest in stated.items():
        known = files.setdefault(name, {"nbytes": None, "checksums": {}})
        known["checksums"]["sha256"] = digest
    return {
        "pinned": entry.get("pinned", ""), "files": files, "image": entry.get("image"),
        "stated": sorted(stated),
    }  # fmt: skip


def _entry(answer: Mapping[str, Any]) -> dict[str, Any]:
    if answer.get("image") is not None:
        return {"pinned": "", "image": answer["image"]}
    files = []
    for file in answer["files"]:
        kept = {what: value for what, value in file.items() if what != "path"}
        files.append({**kept, "identity": lock_files.identity_of(Path(answer["folder"], file["name"]))})
    return {"pinned": answer["pinned"], "folder": answer["folder"], "files": files}


def _is_as(found: Fetched, expected: Mapping[str, Any]) -> bool:
    """Return whether what was found is as expected; False where that cannot be seen from what is known of it.

    Raises DigestMismatchError if it is not.
    """
    _check_kind(found.address, expected, {"image": found.image, "files": found.files})
    if found.image is not None:
        if expected["image"] is not None:
            _check_image(found.address, expected["image"], vars(found.image))
        return True
    for name, file in expected["files"].items():
        digests = found.digests.get(name, {})
        where = f"{name} at {without_secret(found.address)}"
        compare(where, file["checksums"], digests, "the manifest, or trims.lock beside it, states")
        if not file["checksums"].keys() & digests.keys():
            return False
    return True


def _check_kind(address: str, expected: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """Raise DigestMismatchError if an image lies where files were, or the other way round."""
    is_image, listed = answer.get("image") is not None, [file for file in expected["files"].values() if file["nbytes"]]
    if (listed and is_image) or (expected["image"] is not None and not is_image):
        was, now = ("files", "an image") if is_image else ("an image", "files")
        raise DigestMismatchError(
            f"{without_secret(address)} holds {now}, and held {was} when it was first seen; if the change is meant, "
            "accept it (`trims pull --update`)"
        )


def _check_image(address: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for what in ("key", "digest", "nbytes"):
        if before[what] != now[what]:
            raise DigestMismatchError(
                f"the image at {without_secret(address)} has the {what} {now[what]}, and had {before[what]} when it "
                "was first seen; if the change is meant, accept it (`trims pull --update`)"
            )


def _fetched(address: str, entry: Mapping[str, Any]) -> Fetched | None:
    """Return an entry of the lock file as what was fetched; None for one without paths of this machine."""
    if entry.get("image") is not None:
        image = ImageDescription(**entry["image"])
        return Fetched(address, entry.get("pinned") or address, image=image, pushed=entry.get("pushed") is True)
    if "folder" not in entry:
        return None
    files = entry.get("files", ())
    return Fetched(
        address,
        entry["pinned"],
        {file["name"]: Path(entry["folder"], file["name"]) for file in files},
        {file["name"]: {**file["checksums"], **file.get("found", {})} for file in files},
        Path(entry["folder"]),
        proven=frozenset(file["name"] for file in files if file.get("found")),
        identities={file["name"]: file["identity"] for file in files if "identity" in file},
        stated={file["name"]: file["checksums"] for file in files},
        damaged={file["name"]: file["damaged"] for file in files if "damaged" in file},
    )


def _mark(found: str | None) -> dict[str, str]:
    return {} if found is None else {"damaged": found}
