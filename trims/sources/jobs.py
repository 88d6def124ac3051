"""Jobs of the process that moves bytes: look at an address, fetch its files, fetch an image into memory.

One job runs in one thread, and what it needs of the network is its own, so that stopping it closes its connections and
no others. Not covered: messages with the daemon (`child`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import tenacity

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    ArtifactNotFoundError,
    DigestMismatchError,
    LostPeerError,
    SourceRefusedError,
    SourceUnavailableError,
)
from trims.manifests.addresses import host_of, scheme_of
from trims.memory.large_pages import LargePages
from trims.memory.reading import read_all
from trims.sources import checksums, descriptor, partial
from trims.sources.files import Folder
from trims.sources.http import Http
from trims.sources.schemes import source_of
from trims.sources.settings import SourceSettings
from trims.sources.siblings import with_siblings
from trims.sources.transfer import Moved, Transfer, Work, pause, stated_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from trims.sources.base import Destination, Opened, RemoteFile, Source
    from trims.sources.hosts import HostPolicy
    from trims.sources.limits import Limits

    #: Path of a file, and its checksums that were found.
    _Result = tuple[Path, dict[str, str]]

#: Files of so many bytes are fetched several at a time, each over one connection.
_SMALL_BYTES = 4 << 20
_SMALL_AT_ONCE = 4
_SHOWN_NAMES = 5
#: Looks at an address whose source says that it is busy.
_LOOKS = 5
_STATED = (
    "its manifest or trims.lock states; if the change is meant, correct the manifest, or accept it "
    "(`trims pull --update`)"
)


@dataclass
class Surroundings:
    """Surroundings that all jobs of a process share.

    Attributes:
        limits: Bandwidth and connections.
        policy: Hosts that may be connected to.
        downloads: The daemon's folder of downloads.
        environment: Variables of the daemon.
    """

    limits: Limits
    policy: HostPolicy
    downloads: Path
    environment: Mapping[str, str]


@dataclass
class Job:
    """One job, as its thread and the one that stops it share it.

    Attributes:
        order: As the daemon sent it.
        fds: Descriptors that came with it.
    """

    order: Mapping[str, Any]
    around: Surroundings
    fds: Sequence[int] = ()
    work: Work = field(default_factory=lambda: Work(Moved()))
    _open: list[Opened] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def moved(self) -> dict[str, Any]:
        """Return how far it is, as a message says it."""
        moved = self.work.moved
        return {
            "moved": moved.done_bytes, "fetched": moved.fetched_bytes, "total": moved.total_bytes,
            "trouble": self.work.trouble,
        }  # fmt: skip

    def run(self) -> dict[str, Any]:
        """Do it; return the answer. Raises TrimsError, OSError."""
        try:
            return _JOBS[self.order["do"]](self)
        finally:
            self._close()

    def stop(self) -> None:
        """Have it end soon: its connections break off."""
        self.work.stop.set()
        self._close()

    def wanted(self) -> bool:
        """Return whether it was not stopped."""
        return not self.work.stop.is_set()

    def open(self, address: str) -> Opened:
        """Look at an address; what is opened is closed with the job."""
        policy = self.around.policy
        if self.order.get("named"):
            policy = policy.naming(host_of(address))
        http = Http(policy)
        source = source_of(address, SourceSettings(http, self.around.environment))
        try:
            opened = self._look(source, address)
        except BaseException:
            http.close()
            raise
        with self._lock:
            self._open.append(opened)
        if not self.wanted():
            raise LostPeerError("the transfer was stopped")
        return opened

    def _look(self, source: Source, address: str) -> Opened:
        """Look at an address; a source that says that it is busy is asked again, a few times."""
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_busy), wait=pause, stop=tenacity.stop_after_attempt(_LOOKS),
            sleep=self._sleep, reraise=True,
        ):  # fmt: skip
            with attempt:
                return source.open(address)
        raise AssertionError("the last attempt returns or raises")

    def read(self, address: str, most_bytes: int) -> bytes:
        """Return a small file. Raises ArtifactError for one that is larger, and as `Opened.fill`."""
        opened = self.open(address)
        file = opened.files[0]
        if len(opened.files) != 1 or file.nbytes > most_bytes:
            raise ArtifactError(f"{opened.pinned} is no small file: {len(opened.files)} files, {file.nbytes} bytes")
        room = bytearray(file.nbytes)
        for _ in opened.fill(file, [(0, memoryview(room))]):
            pass
        return bytes(room)

    def _sleep(self, seconds: float) -> None:
        if self.work.stop.wait(seconds):
            raise LostPeerError("the transfer was stopped")

    def _close(self) -> None:
        with self._lock:
            opened, self._open = self._open, []
        for each in opened:
            each.close()


def _is_busy(error: BaseException) -> bool:
    """Return whether a source says that it is busy. One that does not answer at all is not waited for."""
    return isinstance(error, SourceUnavailableError) and error.retry_after_s is not None


def _look(job: Job) -> dict[str, Any]:
    """Return what an address holds, without fetching it."""
    found = _descriptor(job)
    if found is not None:
        return found
    opened = job.open(job.order["address"])
    return {"pinned": opened.pinned, "notes": list(opened.notes), "files": [_as_json(file) for file in opened.files]}


def _descriptor(job: Job) -> dict[str, Any] | None:
    """Return the description of a pushed image that lies at an address; None if none does."""
    address = job.order["address"]
    where = descriptor.address_of(address)
    if where is None:
        return None
    try:
        data = job.read(where, descriptor.MOST_BYTES)
    except ArtifactNotFoundError:
        return None
    except (ArtifactError, SourceRefusedError):
        if descriptor.is_guess(address):  # a server's way to say that nothing is there
            return None
        raise
    if descriptor.is_guess(address) and descriptor.FORMAT.encode() not in data:
        return None
    return {"image": descriptor.parse(data, where)}


def _read(job: Job) -> dict[str, Any]:
    """Return the bytes of a small file, such as a manifest, as text."""
    data = job.read(job.order["address"], job.order["most_bytes"])
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{job.order['shown']} is no text in UTF-8: {error}") from error


def _fetch(job: Job) -> dict[str, Any]:
    """Fetch the files of an address to where they are kept; return their paths and checksums, or a description."""
    found = _descriptor(job)
    if found is not None:
        return found
    try:
        return _fetch_files(job)
    except ArtifactChangedError:  # it was replaced while it was fetched: what lies there now is what is wanted
        job.work.moved = Moved(fetched_bytes=job.work.moved.fetched_bytes)
        job.work.failed.clear()
        return _fetch_files(job)


def _fetch_files(job: Job) -> dict[str, Any]:
    opened = job.open(job.order["address"])
    opened = with_siblings(opened, job.order["address"], job.open, job.order.get("stated") or ())
    expected: Mapping[str, Mapping[str, Any]] = job.order.get("expected") or {}
    _check_names(opened.files, expected, job)
    files = [_check_expected(file, expected.get(file.name), job) for file in opened.files]
    destination = opened.destination or Folder(job.around.downloads, opened.pinned, opened.files)
    job.work.moved.total_bytes = sum(file.nbytes for file in files)
    paths = _fetch_all(job, opened, files, destination, expected)
    folder = destination.finish(files)
    return {
        "pinned": opened.pinned, "notes": list(opened.notes), "folder": str(folder),
        "files": [{**_as_json(file), "path": str(paths[file.name][0]), "found": paths[file.name][1]} for file in files],
    }  # fmt: skip


def _fetch_all(
    job: Job,
    opened: Opened,
    files: Sequence[RemoteFile],
    destination: Destination,
    expected: Mapping[str, Mapping[str, Any]],
) -> dict[str, _Result]:
    def one(file: RemoteFile) -> _Result:
        return _fetch_one(job, opened, file, destination, expected.get(file.name) or {})

    small = [file for file in files if file.nbytes <= _SMALL_BYTES]
    with ThreadPoolExecutor(_SMALL_AT_ONCE, thread_name_prefix="trims-small") as pool:
        coming = {file.name: pool.submit(one, file) for file in small}
        _, left = wait(coming.values(), return_when=FIRST_EXCEPTION)
        if left:
            job.work.failed.set()
            for each in left:
                each.cancel()
    done = _results(coming)
    for file in files:
        if file.name not in done:
            done[file.name] = one(file)
    return done


def _results(coming: Mapping[str, Future[_Result]]) -> dict[str, _Result]:
    """Return what came of each. Raises the error that the others ended for, if one failed."""
    errors = [error for each in coming.values() if not each.cancelled() and (error := each.exception()) is not None]
    if errors:
        raise next((each for each in errors if type(each) is not LostPeerError), errors[0])
    return {name: each.result() for name, each in coming.items()}


def _fetch_one(
    job: Job, opened: Opened, file: RemoteFile, destination: Destination, expected: Mapping[str, Any]
) -> _Result:
    """Fetch one file, unless it is there. Return its path, and the checksums that were found."""
    with destination.lock(file, job.wanted):
        there = destination.find(file)
        before: Mapping[str, str] = expected.get("checksums", {})
        if there is not None:
            found = _proven(file, there, before, job)
            _moved(job.work, file.nbytes)
            return there, found
        path = destination.partial(file)
        try:
            found = _transferred(job, opened, file, path, before)
            checksums.compare(f"{file.name} at {job.order['address']}", before, found, _STATED)
        except (DigestMismatchError, ArtifactChangedError):
            partial.remove(path)  # of wrong bytes nothing can be used
            raise
        published = destination.publish(file, path)
        partial.remove(path)  # its journal
        return published, found


def _transferred(job: Job, opened: Opened, file: RemoteFile, path: Path, before: Mapping[str, str]) -> dict[str, str]:
    """Bring a file's bytes to a path. Return the checksums that were found."""
    if not file.nbytes:
        path.write_bytes(b"")
        found = {name: checksums.hasher(name, 0).hexdigest() for name in {"blake3", *stated_digests(file, before)}}
        checksums.compare(file.name, file.checksums, found, "its source states")
        return found
    also = checksums.COMBINED & {*file.checksums, *before}
    with partial.on_disk(path, file, also, lambda nbytes: _moved(job.work, nbytes)) as data:
        digests = {"blake3", *stated_digests(file, before)}
        return Transfer(opened, file, data, job.around.limits, job.work).run(digests)


def _proven(file: RemoteFile, path: Path, before: Mapping[str, str], job: Job) -> dict[str, str]:
    """Return the checksums of a file that is there already; none where those that its source states prove it.

    Raises DigestMismatchError if it is not as it was when it was first seen.
    """
    if file.checksums and before.keys() <= file.checksums.keys():
        return {}
    hashers = {name: checksums.hasher(name, file.nbytes) for name in {"blake3", *stated_digests(file, before)}}
    sums: dict[str, list[tuple[int, int]]] = {name: [] for name in checksums.COMBINED & before.keys()}
    with path.open("rb", buffering=0) as data:
        while piece := data.read(partial.PIECE_BYTES):
            for each in hashers.values():
                each.update(piece)
            for name, some in sums.items():
                some.append((checksums.of_piece(name, memoryview(piece)), len(piece)))
            if not job.wanted():
                raise LostPeerError("the transfer was stopped; what has come is kept")
    found = {name: each.hexdigest() for name, each in hashers.items()}
    found |= {name: checksums.combined(name, some) for name, some in sums.items()}
    checksums.compare(f"{file.name} at {job.order['address']}", before, found, _STATED)
    return found


def _image(job: Job) -> dict[str, Any]:
    """Fetch an image into memory that came with the order, and with a journal for the next process if this one dies."""
    order, fd = job.order, job.fds[0]
    opened = job.open(order["address"])
    file = replace(opened.files[0], checksums={**opened.files[0].checksums, **order["checksums"]})
    if file.nbytes != order["nbytes"]:
        raise ArtifactError(f"{opened.pinned} has {file.nbytes} bytes, its description says {order['nbytes']}")
    also = checksums.COMBINED & set(file.checksums)
    pages = LargePages(fd, file.nbytes) if order.get("large_pages") else None
    journal = job.fds[1] if len(job.fds) > 1 else None
    data = partial.Partial(fd, file.nbytes, journal, also, holes=True, pages=pages)
    job.work.moved.total_bytes = file.nbytes
    try:
        if journal is not None:  # of a process that was killed in the middle of this job
            _moved(job.work, data.resume(os.pread(journal, os.fstat(journal).st_size, 0)))
        found = Transfer(opened, file, data, job.around.limits, job.work).run(stated_digests(file, {}) - {"blake3"})
    finally:
        data.close()
        if pages is not None:
            pages.close()
    return {"found": found}


def _push(job: Job) -> dict[str, Any]:
    """Write an image, which came with the order, and its description to an address; the description comes last."""
    from trims.sources.push import ObjectWriter

    order, fd = job.order, job.fds[0]
    fields = {**order["image"], "checksums": {"crc64nvme": _crc_of(fd, order["nbytes"], job)}}
    image = descriptor.ImageDescription(**fields)
    where, target = str(descriptor.address_of(order["address"])), descriptor.image_address(order["address"], image.file)
    job.work.moved.total_bytes = image.nbytes
    settings = SourceSettings(Http(job.around.policy), job.around.environment)
    writer = ObjectWriter(settings, scheme_of(target))
    with contextlib.closing(writer):
        there = writer.head(target)
        was_there = there is not None and there.nbytes == image.nbytes
        if was_there:
            _moved(job.work, image.nbytes)
        else:
            writer.put_file(target, fd, image.nbytes, lambda done: _moved_to(job.work, done), lambda: not job.wanted())
        writer.put_bytes(where, image.written())
    return {"image": fields, "was_there": was_there}


def _crc_of(fd: int, nbytes: int, job: Job) -> str:
    """Return the CRC64NVME of a file that came with an order, in hex."""
    pieces, room = [], memoryview(bytearray(partial.PIECE_BYTES))
    for begin in range(0, nbytes, len(room)):
        with room[: min(len(room), nbytes - begin)] as piece:
            read_all(fd, piece, begin)
            pieces.append((checksums.of_piece("crc64nvme", piece), len(piece)))
        if not job.wanted():
            raise LostPeerError("the push was stopped")
    return checksums.combined("crc64nvme", pieces)


def _moved_to(work: Work, done_bytes: int) -> None:
    with work.lock:
        work.moved.done_bytes = work.moved.fetched_bytes = done_bytes


def _moved(work: Work, nbytes: int) -> None:
    with work.lock:
        work.moved.done_bytes += nbytes


def _check_names(files: Sequence[RemoteFile], expected: Mapping[str, Mapping[str, Any]], job: Job) -> None:
    """Raise DigestMismatchError for files that were not there when the address was first seen, or are missing now."""
    listed = {name for name, each in expected.items() if each["nbytes"] is not None}
    now = {file.name for file in files}
    asked = set(job.order.get("stated") or ())  # by the manifest, perhaps since
    if listed and listed - asked != now - asked:
        raise DigestMismatchError(
            f"{job.order['shown']} holds {_names(now - listed)} and lacks {_names(listed - now)}, unlike when it was "
            "first seen; if the change is meant, accept it (`trims pull --update`)"
        )
    missing = expected.keys() - now
    if missing:
        raise ArtifactNotFoundError(f"{job.order['shown']} lacks {_names(missing)}, for which digests are stated")


def _names(names: Collection[str]) -> str:
    shown = ", ".join(f"{name!r:.100}" for name in sorted(names)[:_SHOWN_NAMES])
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"{shown}{more}" or "no other file"


def _check_expected(file: RemoteFile, expected: Mapping[str, Any] | None, job: Job) -> RemoteFile:
    """Return a file that is as it was when it was first seen, as far as its source says. Raises DigestMismatchError."""
    if expected is None:
        return file
    where = f"{file.name} at {job.order['address']}"
    if expected["nbytes"] not in (None, file.nbytes):
        raise DigestMismatchError(
            f"{where} has {file.nbytes} bytes, and had {expected['nbytes']} when it was first seen; if the change is "
            "meant, accept it (`trims pull --update`)"
        )
    checksums.compare(where, expected["checksums"], file.checksums, _STATED)
    return file


def _as_json(file: RemoteFile) -> dict[str, Any]:
    return {"name": file.name, "nbytes": file.nbytes, "version": file.version, "checksums": dict(file.checksums)}


_JOBS: Mapping[str, Callable[[Job], dict[str, Any]]] = {
    "look": _look, "fetch": _fetch, "image": _image, "push": _push, "read": _read,
}  # fmt: skip
