"""An image whose tensors stay in the artifact's own files: a head of its own, and pages of those files behind it.

Artifacts whose tensors lie in the file as they are in memory need no copy. Their image is put together from two parts:

1. The *head*: header and binary index, as any image has them, in a file of their own.
2. For each file of the artifact, its pages from the first tensor to the end of the last, mapped behind the head.

A tensor keeps its distance from the next page, so it is aligned as the artifact's author aligned it: to its element,
not to 64 bytes. Not covered: mapping the parts (`trims.memory.mapping`), and opening the files (`trims.tiers.file`).
"""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims.core.errors import NotInPlaceError
from trims.core.layout import DTYPE_BYTES, Layout, TensorSpec
from trims.core.units import align_up
from trims.image.header import METADATA_KEY
from trims.image.index import LENGTH, encode_index
from trims.image.plan import DATA_ALIGNMENT_BYTES, encode_head

if TYPE_CHECKING:
    from trims.image.plan import ImagePlan
    from trims.image.source import FileSpan, SourceFile

#: Of one artifact: each takes a descriptor of the daemon, and one of each session.
MAX_FILES = 64
#: Of the header, for each tensor: digits of its offsets, and an entry for a hole before it.
_MORE_BYTES = 120


@dataclass(frozen=True, slots=True)
class FilePages:
    """Pages of one file.

    Attributes:
        file: Which file; it must still be the one that was described.
        begin: Where the first page lies in the image.
        nbytes: From there to the end of the file's last tensor.
        offset: Of the first page in the file.
    """

    file: SourceFile
    begin: int
    nbytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class InPlacePlan:
    """What an image in place is made of.

    Attributes:
        head: The first bytes of the image: header and index.
        nbytes: Length of the image.
        pages: What follows the head, in order; between two parts lies less than a page, which has no meaning.
    """

    head: bytes
    nbytes: int
    pages: tuple[FilePages, ...]


def plan_in_place(plan: ImagePlan) -> InPlacePlan:
    """Lay out the image of an artifact again, with its tensors where they are.

    Raises NotInPlaceError saying why the artifact needs a conversion.
    """
    spans = {spec.offset: span for spec, span in plan.spans}
    if plan.program or plan.fills or not spans:
        raise NotInPlaceError("its image has parts that lie in no file of it")
    files = _files(plan, spans)
    # Offsets have more digits, and holes become entries: the header is given room for both before they are known.
    data_start = align_up(len(plan.head) + _MORE_BYTES * (len(plan.layout) + 1), DATA_ALIGNMENT_BYTES)
    begin = align_up(data_start + len(plan.index), mmap.PAGESIZE)
    pages = _place(files, begin)
    moved = {each.file: each.begin - each.offset - data_start for each in pages}
    specs = []
    for spec in plan.layout:
        span = spans.get(spec.offset) if spec.nbytes else None
        at = begin - data_start if span is None else moved[span.file] + span.offset
        specs.append(TensorSpec(spec.name, spec.dtype, spec.shape, at))
    nbytes = pages[-1].begin + pages[-1].nbytes
    return InPlacePlan(_head(plan, Layout.of(specs), data_start, nbytes - data_start), nbytes, pages)


def _files(plan: ImagePlan, spans: dict[int, FileSpan]) -> dict[SourceFile, tuple[int, int]]:
    """Where the tensors of each file begin and end in it."""
    found: dict[SourceFile, tuple[int, int]] = {}
    for spec in plan.layout:
        span = spans.get(spec.offset) if spec.nbytes else None
        if span is None:
            if spec.nbytes:
                raise NotInPlaceError(f"tensor {spec.name!r} lies in no file of it")
            continue
        if span.offset % DTYPE_BYTES[spec.dtype]:
            raise NotInPlaceError(
                f"tensor {spec.name!r} lies at {span.offset} in {span.file.path}, unaligned for {spec.dtype}"
            )
        begin, end = found.get(span.file, (span.offset, 0))
        found[span.file] = min(begin, span.offset), max(end, span.offset + spec.nbytes)
    if len(found) > MAX_FILES:
        raise NotInPlaceError(f"it has {len(found)} files; more than {MAX_FILES} are not kept open")
    return found


def _place(files: dict[SourceFile, tuple[int, int]], at: int) -> tuple[FilePages, ...]:
    pages = []
    for file, (begin, end) in files.items():
        offset = begin - begin % mmap.PAGESIZE
        pages.append(FilePages(file, at, end - offset, offset))
        at = align_up(at + end - offset, mmap.PAGESIZE)
    return tuple(pages)


def _head(plan: ImagePlan, layout: Layout, data_start: int, data_bytes: int) -> bytes:
    """Header and index of the moved tensors."""
    index = encode_index(layout, program_offset=data_bytes, program_bytes=0, data_bytes=data_bytes)
    (length,) = LENGTH.unpack_from(plan.head)
    metadata = json.loads(plan.head[LENGTH.size : LENGTH.size + length])["__metadata__"]
    del metadata[METADATA_KEY]
    first = {spec.offset: spec for spec in reversed(list(layout)) if spec.nbytes}  # later ones are tied to it
    owned = [*(spec for spec in layout if not spec.nbytes), *sorted(first.values(), key=lambda spec: spec.offset)]
    head = encode_head(owned, layout, index, (data_bytes, data_bytes), metadata, at_least=data_start)
    if len(head) != data_start:
        raise NotInPlaceError("its header is larger than was planned for")
    return head + index
