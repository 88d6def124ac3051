"""An image whose tensors stay in the artifact's own files: a head of its own, and pages of those files behind it.

Artifacts whose tensors lie in the file as they are in memory need no copy. Their image is put together from two parts:

1. The *head*: header, binary index and program, as any image has them, in a file of their own.
2. For each file of the artifact, its pages from the first tensor to the end of the last, mapped behind the head.

A tensor keeps its distance from the next page, so it is aligned as the artifact's author aligned it: to its element as
a rule, not to 64 bytes. One that is not even aligned to its element is copied by each session that reads it
(`trims_client.weights`). Not covered: mapping the parts (`trims.memory.mapping`), and opening the files
(`trims.tiers.file`).
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from trims.core.errors import ImageError, NotInPlaceError
from trims.core.layout import DTYPE_BYTES, MAX_DIMENSIONS, RESERVED, TENSOR_ALIGNMENT_BYTES, Layout, TensorSpec
from trims.core.units import align_up
from trims.image.index import encode_index, index_bytes
from trims.image.plan import DATA_ALIGNMENT_BYTES, OverlapError, encode_head
from trims.image.program import TORCH_SKELETON

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trims.image.plan import Contents, SourceTensor
    from trims.image.source import SourceFile

#: Of one artifact: each takes a descriptor of the daemon, and one of each session.
MAX_FILES = 64
#: Of one tensor: more than any file has, and little enough to count on from.
_MOST_BYTES = 1 << 62


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
        head: The first bytes of the image: header, index and program.
        nbytes: Length of the image.
        pages: What follows the head, in order; between two parts lies less than a page, which has no meaning.
        unaligned_bytes: Of tensors that are not aligned to their elements, so that each session copies what it reads.
    """

    head: bytes
    nbytes: int
    pages: tuple[FilePages, ...]
    unaligned_bytes: int = 0


def plan_in_place(contents: Contents) -> InPlacePlan:
    """Lay out the image of an artifact with its tensors where they are.

    Raises NotInPlaceError saying why the artifact needs a conversion.
    """
    sources = contents.sources
    sizes = _sizes(sources)
    files = _files(sources, sizes)
    program = contents.program.encode() if contents.program else b""
    table_bytes = index_bytes([source.name for source in sources], sum([len(source.shape) for source in sources]))
    program_offset = align_up(table_bytes, TENSOR_ALIGNMENT_BYTES)
    # Counted from the start of the data block, which is a page's: so the length of the header moves nothing.
    pages = _place(files, align_up(program_offset + len(program), mmap.PAGESIZE))
    if not pages and contents.program is None:
        raise NotInPlaceError("no tensor of it lies in a file")
    layout = Layout(_specs(sources, sizes, pages, program_offset))
    data_bytes = pages[-1].begin + pages[-1].nbytes if pages else program_offset + len(program)
    index = encode_index(layout, program_offset=program_offset, program_bytes=len(program), data_bytes=data_bytes)
    first = [layout.tensors[source.name] for source in sources if source.tied_to is None]
    span = (program_offset, program_offset + len(program))
    alignment = max(DATA_ALIGNMENT_BYTES, mmap.PAGESIZE)
    try:
        head = encode_head(first, layout, index, span, contents.metadata, alignment=alignment)
    except OverlapError as error:
        raise NotInPlaceError(str(error)) from error
    moved = tuple(FilePages(each.file, len(head) + each.begin, each.nbytes, each.offset) for each in pages)
    unaligned_bytes = _unaligned_bytes(layout)
    if unaligned_bytes and contents.program is not None and contents.program.kind == TORCH_SKELETON:
        raise NotInPlaceError("its skeleton refers to tensors that are not aligned to their elements")
    whole = head + index.ljust(program_offset, b"\0") + program
    return InPlacePlan(whole, len(head) + data_bytes, moved, unaligned_bytes)


def _unaligned_bytes(layout: Layout) -> int:
    found = {spec.offset: spec.nbytes for spec in layout.tensors.values() if spec.offset % DTYPE_BYTES[spec.dtype]}
    return sum(found.values())


def _sizes(sources: Sequence[SourceTensor]) -> dict[str, int]:
    """Bytes of all tensors by name. Raises ImageError for a name that comes twice, and as `Layout.validate`."""
    found = {}
    for name, dtype, shape, _, _, _ in sources:
        width = DTYPE_BYTES.get(dtype, 0)
        found[name] = nbytes = prod(shape) * width
        odd = not width or len(shape) > MAX_DIMENSIONS or nbytes > _MOST_BYTES or name == RESERVED
        if odd or (shape and min(shape) < 0):
            Layout({name: TensorSpec(name, dtype, shape, 0)}).validate(_MOST_BYTES)
    if len(found) < len(sources):
        Layout.of(TensorSpec(source.name, source.dtype, source.shape, 0) for source in sources)
    return found


def _files(sources: Iterable[SourceTensor], sizes: Mapping[str, int]) -> dict[SourceFile, tuple[int, int]]:
    """Where the tensors of each file begin and end in it, all but the empty ones and those tied to another.

    Raises NotInPlaceError.
    """
    spans: dict[int, tuple[SourceFile, int, int]] = {}  # by the object: comparing two files costs more than the rest
    for name, _, _, _, tied_to, span in sources:
        if tied_to is not None or not (nbytes := sizes[name]):
            continue
        if span is None:
            raise NotInPlaceError(f"tensor {name!r} lies in no file of it")
        file, at = span
        _, begin, end = spans.get(id(file)) or (file, at, at)
        spans[id(file)] = file, min(begin, at), max(end, at + nbytes)
    found: dict[SourceFile, tuple[int, int]] = {}
    for file, begin, end in spans.values():
        before = found.get(file, (begin, end))
        found[file] = min(begin, before[0]), max(end, before[1])
    if len(found) > MAX_FILES:
        raise NotInPlaceError(f"it has {len(found)} files; more than {MAX_FILES} are not kept open")
    return found


def _place(files: dict[SourceFile, tuple[int, int]], at: int) -> list[FilePages]:
    pages = []
    for file, (begin, end) in files.items():
        offset = begin - begin % mmap.PAGESIZE
        pages.append(FilePages(file, at, end - offset, offset))
        at = align_up(at + end - offset, mmap.PAGESIZE)
    return pages


def _specs(
    sources: Iterable[SourceTensor], sizes: Mapping[str, int], pages: Iterable[FilePages], empty_at: int
) -> dict[str, TensorSpec]:
    """All tensors at their offsets in the data block; empty ones lie where the program begins. Raises ImageError."""
    moved = {each.file: each.begin - each.offset for each in pages}
    found: dict[str, TensorSpec] = {}
    tied: list[SourceTensor] = []
    last, by = None, 0
    for source in sources:
        name, dtype, shape, _, tied_to, span = source
        offset = empty_at
        if tied_to is not None:
            tied.append(source)
        elif span is not None and sizes[name]:
            if span.file is not last:
                last, by = span.file, moved[span.file]
            offset = span.offset + by
        found[name] = TensorSpec(name, dtype, shape, offset)
    for source in tied:
        owner = found.get(source.tied_to or "")
        if owner is None or sizes[owner.name] < sizes[source.name]:
            raise ImageError(f"tensor {source.name!r} is tied to {source.tied_to!r}, which is not there or smaller")
        found[source.name] = found[source.name]._replace(offset=owner.offset)
    return found
