"""Jobs of the process that moves bytes, by what a daemon orders: look, fetch, read, fetch an image, push one."""

from __future__ import annotations

import contextlib
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    ArtifactNotFoundError,
    DigestMismatchError,
    LostPeerError,
    SourceRefusedError,
)
from trims.manifests.foreign import left_out
from trims.sources import descriptor
from trims.sources.files import Folder
from trims.sources.process.image_jobs import fetch_image, give_up_parts, push_image
from trims.sources.siblings import with_siblings
from trims.sources.transfer import checksums, partial
from trims.sources.transfer.transfer import Moved, Transfer, stated_digests

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from trims.sources.base import Destination, Opened, RemoteFile
    from trims.sources.process.job import Job

    #: Path of a file, and its checksums that were found.
    _Result = tuple[Path, dict[str, str]]
    from collections.abc import Callable


# Fetching the files of an address to where they are kept: each is proven, and held against what was seen before.

#: Files of so many bytes are fetched several at a time, each over one connection.
_SMALL_BYTES = 4 << 20
_SMALL_AT_ONCE = 4
_SHOWN_NAMES = 5
_STATED = (
    "its manifest or trims.lock states; if the change is meant, correct the manifest, or accept it "
    "(`trims pull --update`)"
)

_STATED_OF_FILE = (
    "its first fetch, its source, its manifest or trims.lock states; remove that file and pull again, or correct what "
    "is stated"
)


def fetch_files(job: Job) -> dict[str, Any]:
    """Fetch the files of an address to where they are kept; return their paths and checksums."""
    try:
        return _files_of(job)
    except ArtifactChangedError:  # it was replaced while it was fetched: what lies there now is what is wanted
        job.work.moved = Moved(fetched_bytes=job.work.moved.fetched_bytes)
        job.work.failed.clear()
        return _files_of(job)


def _files_of(job: Job) -> dict[str, Any]:
    opened = job.open(job.order["address"])
    opened = with_siblings(opened, job.order["address"], job.open, job.order.get("stated") or ())
    if gguf := [file.name for file in opened.files if file.name.lower().endswith(".gguf")]:
        raise ArtifactError(
            f"{job.order['shown']}: {gguf[0]} is a GGUF file, whose quantised blocks are no tensors that a framework "
            "here reads, so it is not fetched: take the model's safetensors"
        )
    expected: Mapping[str, Mapping[str, Any]] = job.order.get("expected") or {}
    _check_names(opened.files, expected, job)
    files = [_check_expected(file, expected.get(file.name), job) for file in opened.files]
    destination = opened.destination or Folder(job.around.downloads, _named(job), opened.files)
    job.work.moved.total_bytes = sum(file.nbytes for file in files)
    with contextlib.ExitStack() as room:
        if isinstance(destination, Folder):  # a hub's cache, or a plugin's own place, has no bound of ours
            room.enter_context(job.around.room.taken(destination.path, job.work.moved.total_bytes))
        paths = _fetch_all(job, opened, files, destination, expected)
        folder = destination.finish(files)
    return {
        "pinned": opened.pinned, "notes": list(opened.notes), "folder": str(folder),
        "files": [{**as_json(file), "path": str(paths[file.name][0]), "found": paths[file.name][1]} for file in files],
    }  # fmt: skip


def _named(job: Job) -> str:
    """Return the address as a manifest names it: the one that is asked may have its version."""
    return str(job.order.get("uri") or job.order["address"])


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
            job.work.came(file.nbytes)
            return there, found
        path = destination.partial(file)
        try:
            found = _transferred(job, opened, file, path, before)
            checksums.compare(f"{file.name} at {job.order['shown']}", before, found, _STATED)
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
    with partial.on_disk(path, file, also, job.work.came) as data:
        digests = {"blake3", *stated_digests(file, before)}
        return Transfer(opened, file, data, job.around.limits, job.work).run(digests)


def _proven(file: RemoteFile, path: Path, before: Mapping[str, str], job: Job) -> dict[str, str]:
    """Return the checksums of a file that is there already; none where those that its source states prove it.

    Raises DigestMismatchError if it is not as it was when it was first seen.
    """
    if "sha256" in file.checksums and before.keys() <= file.checksums.keys() and not job.order.get("prove"):
        return {}  # its first reader proves it
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
    where = f"{file.name} of {job.order['shown']}, which lies at {path.resolve()},"
    checksums.compare(where, {**before, **file.checksums}, found, _STATED_OF_FILE)
    return found


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
    where = f"{file.name} at {job.order['shown']}"
    if expected["nbytes"] not in (None, file.nbytes):
        raise DigestMismatchError(
            f"{where} has {file.nbytes} bytes, and had {expected['nbytes']} when it was first seen; if the change is "
            "meant, accept it (`trims pull --update`)"
        )
    checksums.compare(where, expected["checksums"], file.checksums, _STATED)
    return file


def as_json(file: RemoteFile) -> dict[str, Any]:
    """Return a file as a message says it."""
    return {"name": file.name, "nbytes": file.nbytes, "version": file.version, "checksums": dict(file.checksums)}


#: Fields that one note names.
_SHOWN_FIELDS = 10


def run(job: Job) -> dict[str, Any]:
    """Do a job; return the answer. Raises TrimsError, OSError."""
    try:
        return _JOBS[job.order["do"]](job)
    finally:
        job.close()


def _look(job: Job) -> dict[str, Any]:
    """Return what an address holds, without fetching it."""
    found = _descriptor(job)
    if found is not None:
        return found
    opened = job.open(job.order["address"])
    return {"pinned": opened.pinned, "notes": list(opened.notes), "files": [as_json(file) for file in opened.files]}


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
    found = descriptor.parse(data, where)
    left = left_out(found["manifest"])
    named = ", ".join(f"{name:.40}" if name.isprintable() else ascii(f"{name:.40}") for name in left[:_SHOWN_FIELDS])
    notes = [f"left out what its publisher said of: {named}"] if left else []
    return {"image": found, "notes": notes}


def _read(job: Job) -> dict[str, Any]:
    """Return the bytes of a small file, such as a manifest, as text."""
    data = job.read(job.order["address"], job.order["most_bytes"])
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{job.order['shown']} is no text in UTF-8: {error}") from error


def _fetch(job: Job) -> dict[str, Any]:
    """Fetch the files of an address, unless it is that of a pushed image; return them, or its description."""
    return _descriptor(job) or fetch_files(job)


_JOBS: Mapping[str, Callable[[Job], dict[str, Any]]] = {
    "look": _look, "fetch": _fetch, "image": fetch_image, "push": push_image, "read": _read,
    "give_up": give_up_parts,
}  # fmt: skip
