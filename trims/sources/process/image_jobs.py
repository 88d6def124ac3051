"""Jobs of images: fetching one into memory that a daemon gives, and pushing one to a bucket."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    ArtifactNotFoundError,
    CallerError,
    LostPeerError,
    ModelExistsError,
    NotSupportedError,
)
from trims.manifests.addresses import scheme_of
from trims.memory.large_pages import LargePages
from trims.memory.reading import read_all
from trims.sources import descriptor
from trims.sources.schemes import OBJECT_STORES
from trims.sources.transfer import checksums, partial
from trims.sources.transfer.transfer import Transfer, stated_digests

if TYPE_CHECKING:
    from trims.sources.base import RemoteFile
    from trims.sources.buckets.push import ObjectWriter
    from trims.sources.process.job import Job


def fetch_image(job: Job) -> dict[str, Any]:
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
            job.work.came(data.resume(os.pread(journal, os.fstat(journal).st_size, 0)))
        found = Transfer(opened, file, data, job.around.limits, job.work).run(stated_digests(file, {}) - {"blake3"})
    finally:
        data.close()
        if pages is not None:
            pages.close()
    return {"found": found}


def push_image(job: Job) -> dict[str, Any]:
    """Write an image, which came with the order, and its description to an address; the description comes last.

    Raises ModelExistsError where another model lies, or a description that is none, unless the order says `replace`.
    """
    from trims.sources.buckets.push import ObjectWriter

    order, fd = job.order, job.fds[0]
    if scheme_of(order["address"]) not in OBJECT_STORES:
        raise CallerError(f"{job.order['shown']} is no bucket; {', '.join(OBJECT_STORES)} are schemes of buckets")
    where = descriptor.address_of(order["address"])
    if where is None:
        raise CallerError(f"{order['shown']} is the address of a file: an image is pushed to a prefix of its own")
    settings = job.around.settings(job.around.http(job.around.policy))
    with contextlib.closing(ObjectWriter(settings, scheme_of(where))) as writer:
        known, version = _described(writer, where, order["image"]["name"], replace=order.get("replace", False))
        fields = {**order["image"], "checksums": {"crc64nvme": _crc_of(fd, order["nbytes"], job)}}
        image = descriptor.ImageDescription(**fields)
        target = descriptor.image_address(order["address"], image.file)
        job.work.moved.total_bytes = image.nbytes
        there = writer.head(target)
        was_there = there is not None and _is_same(there, image, known, version)
        if there is None or not was_there:
            there = writer.put_file(target, fd, image.nbytes, job.work.has_come, lambda: not job.wanted())
        else:
            job.work.came(image.nbytes)
        writer.put_bytes(where, image.written(there.version))
    return {"image": fields, "was_there": was_there}


def give_up_parts(job: Job) -> dict[str, Any]:
    """Have a store remove the parts of an object whose push was killed; return how many uploads there were."""
    from trims.sources.buckets.objects import open_bucket

    address = job.order["address"]
    settings = job.around.settings(job.around.http(job.around.policy))
    bucket, parsed = open_bucket(settings, scheme_of(address), address)
    with contextlib.closing(bucket.http):
        return {"uploads": bucket.give_up_parts(parsed.key)}


def _described(
    writer: ObjectWriter, where: str, name: str, *, replace: bool
) -> tuple[descriptor.ImageDescription | None, str]:
    """Return the description that lies at an address, None if none does, and its image's version in the store.

    Raises ModelExistsError for that of another model, or what cannot be read as one, unless it may be replaced.
    """
    try:
        data = writer.read(where, descriptor.MOST_BYTES)
        if data is None:
            return None, ""
        known, version = descriptor.ImageDescription(**descriptor.parse(data, where)), descriptor.stored_as(data)
    except ArtifactNotFoundError:  # it went away meanwhile
        return None, ""
    except ArtifactChangedError:  # another push runs
        raise
    except (ArtifactError, NotSupportedError) as error:
        if replace:
            return None, ""
        raise _taken(f"what lies there cannot be read as a model that trims pushed ({error})") from error
    if known.name != name and not replace:
        raise _taken(f"the model {known.name!r:.200} lies at {where}, and {name!r} would take its place")
    return known, version


def _taken(why: str) -> ModelExistsError:
    return ModelExistsError(f"{why}; push to another address, or replace what is there (`trims push --replace`)")


def _is_same(
    there: RemoteFile, image: descriptor.ImageDescription, known: descriptor.ImageDescription | None, version: str
) -> bool:
    """Return whether an object has the bytes of an image: by the store's checksum, or unchanged since its push."""
    if there.nbytes != image.nbytes:
        return False
    if stated := there.checksums.get("crc64nvme"):
        return stated == image.checksums["crc64nvme"]
    if known is None or (known.key, known.digest, known.file) != (image.key, image.digest, image.file):
        return False
    return bool(version) and there.version == version


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
