"""Jobs of the process that moves bytes, by what a daemon orders: look, fetch, read, fetch an image, push one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactError, ArtifactNotFoundError, SourceRefusedError
from trims.manifests.foreign import left_out
from trims.sources import descriptor
from trims.sources.process.fetching import as_json, fetch_files
from trims.sources.process.image_jobs import fetch_image, give_up_parts, push_image

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trims.sources.process.job import Job

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
