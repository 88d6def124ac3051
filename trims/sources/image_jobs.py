"""Jobs of images: fetching one into memory that a daemon gives, and pushing one to a bucket."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactError, CallerError, LostPeerError
from trims.manifests.addresses import scheme_of
from trims.memory.large_pages import LargePages
from trims.memory.reading import read_all
from trims.sources import checksums, descriptor, partial
from trims.sources.http import Http
from trims.sources.schemes import OBJECT_STORES
from trims.sources.settings import SourceSettings
from trims.sources.transfer import Transfer, stated_digests

if TYPE_CHECKING:
    from trims.sources.job import Job


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
    """Write an image, which came with the order, and its description to an address; the description comes last."""
    from trims.sources.push import ObjectWriter

    order, fd = job.order, job.fds[0]
    if scheme_of(order["address"]) not in OBJECT_STORES:
        raise CallerError(f"{job.order['shown']} is no bucket; {', '.join(OBJECT_STORES)} are schemes of buckets")
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
            job.work.came(image.nbytes)
        else:
            writer.put_file(target, fd, image.nbytes, job.work.has_come, lambda: not job.wanted())
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
