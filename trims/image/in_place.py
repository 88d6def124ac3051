"""An image whose tensors stay in the artifact's own files: a head of its own, and pages of those files behind it.

Artifacts whose tensors lie in the file as they are in memory need no copy. Their image is put together from two parts:

1. The *head*: header, binary index and program, in a file of their own. The JSON of this header lists all tensors as
   one part: sessions find them by the index.
2. For each file of the artifact, its pages from the first tensor to the end of the last, mapped behind the head.

A tensor keeps its distance from the next page, so it is aligned as the artifact's author aligned it: to its element as
a rule, not to 64 bytes. One that is not even aligned to its element is copied by each session that reads it
(`trims_client.weights`). Not covered: mapping the parts (`trims.memory.mapping`), and opening the files
(`trims.tiers.file`).
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from itertools import chain, repeat, starmap
from math import prod
from operator import mod, mul
from typing import TYPE_CHECKING

from trims.core.errors import ImageError, NotInPlaceError
from trims.core.layout import DTYPE_BYTES, MAX_DIMENSIONS, RESERVED, TENSOR_ALIGNMENT_BYTES, Layout, TensorSpec
from trims.core.units import align_up
from trims.image.index import encode_columns, index_bytes
from trims.image.plan import DATA_ALIGNMENT_BYTES, SourceTensor, encode_outline
from trims.image.program import TORCH_SKELETON

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trims.image.plan import Contents
    from trims.image.source import FileSpan, SourceFile

#: Most files of one artifact: each takes a descriptor of the daemon, and one of each session.
MAX_FILES = 64
#: Most bytes of one tensor: more than any file has, and little enough to count on from.
_MOST_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class FilePages:
    """Pages of one file.

    Attributes:
        file: File, which must still be the one that was described.
        begin: Where the first page lies in the image.
        nbytes: Bytes from there to the end of the file's last tensor.
        offset: Offset of the first page in the file.
    """

    file: SourceFile
    begin: int
    nbytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class InPlacePlan:
    """Plan of an image in place: its parts.

    Attributes:
        head: The first bytes of the image: header, index and program.
        pages: What follows the head, in order; between two parts lies less than a page, which has no meaning.
        unaligned_bytes: Bytes of tensors that are not aligned to their elements, so that each session copies what it
            reads.
    """

    head: bytes
    nbytes: int
    pages: tuple[FilePages, ...]
    unaligned_bytes: int = 0


def plan_in_place(contents: Contents) -> InPlacePlan:
    """Lay out the image of an artifact with its tensors where they are.

    Raises NotInPlaceError saying why the artifact needs a conversion.
    """
    tensors = _Columns(contents.sources)
    program = contents.program.encode() if contents.program else b""
    program_offset = align_up(index_bytes(tensors.names, tensors.shapes), TENSOR_ALIGNMENT_BYTES)
    # Counted from the start of the data block, which is a page's: so the length of the header moves nothing.
    pages = _place(tensors.files(), align_up(program_offset + len(program), mmap.PAGESIZE))
    if not pages and contents.program is None:
        raise NotInPlaceError("no tensor of it lies in a file")
    offsets = tensors.offsets(pages, empty_at=program_offset)
    tensors.check_apart(offsets)
    unaligned_bytes = tensors.unaligned_bytes(offsets)
    if unaligned_bytes and contents.program is not None and contents.program.kind == TORCH_SKELETON:
        raise NotInPlaceError("its skeleton refers to tensors that are not aligned to their elements")
    data_bytes = pages[-1].begin + pages[-1].nbytes if pages else program_offset + len(program)
    span = (program_offset, program_offset + len(program))
    columns = (tensors.names, tensors.dtypes, tensors.shapes, offsets)
    index = encode_columns(*columns, program_offset=span[0], program_bytes=len(program), data_bytes=data_bytes)
    alignment = max(DATA_ALIGNMENT_BYTES, mmap.PAGESIZE)
    header = encode_outline(len(index), span, data_bytes, contents.metadata, alignment=alignment)
    head = header + index.ljust(program_offset, b"\0") + program
    moved = tuple(FilePages(each.file, len(header) + each.begin, each.nbytes, each.offset) for each in pages)
    return InPlacePlan(head, len(header) + data_bytes, moved, unaligned_bytes)


class _Columns:
    """The tensors of an artifact by column.

    A step for a whole column takes a fraction of as many steps for one tensor each, and this is done where a request
    waits.

    Args:
        sources: The tensors. Raises ImageError for a name that comes twice, and as `Layout.validate`.
    """

    def __init__(self, sources: Sequence[SourceTensor]) -> None:
        columns = tuple(zip(*sources, strict=True)) or ((),) * len(SourceTensor._fields)
        self.names: tuple[str, ...] = columns[0]
        self.dtypes: tuple[str, ...] = columns[1]
        self.shapes: tuple[tuple[int, ...], ...] = columns[2]
        self._tied_to: tuple[str | None, ...] = columns[4]
        self._spans: tuple[FileSpan | None, ...] = columns[5]
        self._widths = [DTYPE_BYTES.get(dtype, 0) for dtype in self.dtypes]
        self._sizes = list(map(mul, map(prod, self.shapes), self._widths))
        if not self._is_plain():
            described = zip(self.names, self.dtypes, self.shapes, repeat(0), strict=False)
            Layout.of(starmap(TensorSpec, described)).validate(_MOST_BYTES)

    def _is_plain(self) -> bool:
        """Return whether no tensor is one that `Layout` may refuse. If false, `Layout` names the tensor."""
        largest, most_dimensions = max(self._sizes, default=0), max(map(len, self.shapes), default=0)
        sizes = min(chain.from_iterable(self.shapes), default=0) >= 0 and largest <= _MOST_BYTES and all(self._widths)
        names = set(self.names)
        return sizes and most_dimensions <= MAX_DIMENSIONS and len(names) == len(self.names) and RESERVED not in names

    def files(self) -> dict[SourceFile, tuple[int, int]]:
        """Return where each file's tensors begin and end in it, all but the empty ones and those tied to another.

        Raises NotInPlaceError.
        """
        spans: dict[int, tuple[SourceFile, int, int]] = {}  # by the object: comparing two files takes longer
        for name, nbytes, tied_to, span in zip(self.names, self._sizes, self._tied_to, self._spans, strict=True):
            if tied_to is not None or not nbytes:
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

    def offsets(self, pages: Iterable[FilePages], *, empty_at: int) -> list[int]:
        """Return where in the data block each tensor lies, with these pages in it, and the empty ones at `empty_at`.

        Raises ImageError.
        """
        moved = {each.file: each.begin - each.offset for each in pages}
        found: list[int] = []
        last, by = None, 0
        for nbytes, span in zip(self._sizes, self._spans, strict=True):
            if span is None or not nbytes:
                found.append(empty_at)
                continue
            if span.file is not last:
                last, by = span.file, moved[span.file]
            found.append(span.offset + by)
        if any(self._tied_to):
            self._tie(found)
        return found

    def _tie(self, offsets: list[int]) -> None:
        numbers = {name: number for number, name in enumerate(self.names)}
        for number, owner in enumerate(self._tied_to):
            if owner is None:
                continue
            owned = numbers.get(owner)
            if owned is None or self._sizes[owned] < self._sizes[number]:
                raise ImageError(f"tensor {self.names[number]!r} is tied to {owner!r}, which is not there or smaller")
            offsets[number] = offsets[owned]

    def check_apart(self, offsets: Sequence[int]) -> None:
        """Raise NotInPlaceError if two tensors share a part of their bytes, and neither is tied to the other."""
        position = 0
        for number in sorted(range(len(offsets)), key=offsets.__getitem__):
            if self._sizes[number] and self._tied_to[number] is None:
                if offsets[number] < position:
                    raise NotInPlaceError(f"tensor {self.names[number]!r} shares a part of its bytes with another")
                position = offsets[number] + self._sizes[number]

    def unaligned_bytes(self, offsets: Sequence[int]) -> int:
        """Return the bytes of tensors that are not aligned to their elements; those at one place count once."""
        if not any(map(mod, offsets, self._widths)):
            return 0
        found = zip(offsets, self._widths, self._sizes, strict=True)
        return sum({offset: nbytes for offset, width, nbytes in found if offset % width}.values())


def _place(files: dict[SourceFile, tuple[int, int]], at: int) -> list[FilePages]:
    pages = []
    for file, (begin, end) in files.items():
        offset = begin - begin % mmap.PAGESIZE
        pages.append(FilePages(file, at, end - offset, offset))
        at = align_up(at + end - offset, mmap.PAGESIZE)
    return pages
