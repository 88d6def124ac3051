"""Laying out a new image and writing it: what every converter ends in.

A plan is made from descriptions alone, so that the store knows the exact size before it gives memory. Writing then
fills a mapping of that size: each tensor's bytes are read or produced straight into their final place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib.util import find_spec
from json.encoder import encode_basestring
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import ImageError
from trims.core.layout import DTYPE_BYTES, TENSOR_ALIGNMENT_BYTES, Layout, TensorSpec
from trims.core.units import align_up, format_bytes
from trims.image.checksum import stamp
from trims.image.header import FORMAT_VERSION, METADATA_KEY
from trims.image.index import LENGTH, MAX_HEADER_BYTES, encode_index, index_size
from trims.image.source import read_spans
from trims.memory.mapping import FileMapping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trims.image.program import Program
    from trims.image.source import FileSpan, SourceFile

#: The data block starts on a page, so that it can be mapped, read with O_DIRECT or registered alone.
DATA_ALIGNMENT_BYTES = 4096
_SPAN = itemgetter(0, 1)
#: Prefix of the names that trims gives its own parts in the JSON header; longer where a tensor's name begins so.
_PREFIX = "__trims__"
#: A tensor's first byte, its end, name, dtype and shape.
_Placed = tuple[int, int, str, str, tuple[int, ...]]


class SourceTensor(NamedTuple):
    """A tensor on its way into an image. Its bytes come from `fill`, `span` or another tensor; none of them: zeros.

    Attributes:
        name: Any Unicode string but `__metadata__`.
        dtype: A key of `DTYPE_BYTES`.
        shape: Extents, row-major.
        fill: Writes the tensor's bytes into the memory it is given, which has exactly its size. Not called for
            empty tensors.
        tied_to: Name of an earlier tensor whose first bytes this one shares.
        span: Where the bytes lie in a file, already as the image wants them: little endian, row-major, dense.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: Callable[[memoryview], None] | None = None
    tied_to: str | None = None
    span: FileSpan | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of an image, before it is laid out.

    Attributes:
        sources: The tensors, in the order in which they will be listed.
        program: The graph, if the model has one.
        metadata: Strings kept in the header beside trims' own.
    """

    sources: Sequence[SourceTensor]
    program: Program | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def plan(self) -> ImagePlan:
        """Lay the contents out for a copy. Raises as `plan_image`."""
        return plan_image(self.sources, program=self.program, metadata=self.metadata)


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """Plan of an image: where every byte will lie.

    Attributes:
        layout: The user's tensors, tied ones included.
        head: 8-byte length and padded JSON; the data block follows.
        index: The binary index, first in the data block.
        program: Encoded program, or empty.
        program_offset: Where it lies in the data block.
        fills: Producers, in order of their offset.
        spans: Bytes of files, read in parallel before the producers run.
        files: What the producers read: checked at the end to be the files they were when the plan was made.
    """

    layout: Layout
    head: bytes
    data_bytes: int
    index: bytes
    program: bytes
    program_offset: int
    fills: Sequence[tuple[TensorSpec, Callable[[memoryview], None]]] = field(default_factory=tuple)
    spans: Sequence[tuple[TensorSpec, FileSpan]] = field(default_factory=tuple)
    files: Sequence[SourceFile] = field(default_factory=tuple)

    @property
    def nbytes(self) -> int:
        """Return the length of the whole image in bytes."""
        return len(self.head) + self.data_bytes

    def write(self, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        """Fill the file or segment behind the descriptor, which must have `nbytes` bytes, zeroed and allocated.

        The image gets its checksum where numpy is installed: an environment without it makes images that have none.
        """
        # Aligned: memory that was reserved in large pages is mapped as such, and not in half a million small faults.
        # Closed by hand, when all went well: the traceback of an error may hold views of the mapping, which then goes
        # with them; `with` would raise BufferError in the error's place.
        target = FileMapping(fd, self.nbytes, write=True)
        view = target.view()
        self.write_into(view, on_progress)
        if find_spec("numpy") is not None:
            stamp(view, None if on_progress is None else lambda: on_progress(self.nbytes))
        view.release()
        target.close()

    def write_into(self, target: memoryview, on_progress: Callable[[int], None] | None = None) -> None:
        """Fill memory of exactly `nbytes` zeroed bytes.

        Args:
            on_progress: Called in this thread, every few MiB, with the bytes of weights written so far; an
                exception from it ends the writing and leaves the image incomplete.

        Raises:
            ArtifactError: A source file vanished, shrank or changed since the plan was made.
        """
        if len(target) != self.nbytes:
            raise ImageError(f"an image of {self.nbytes} bytes was given {len(target)} to fill")
        data_start = len(self.head)
        target[:data_start] = self.head
        data = target[data_start:]
        data[: len(self.index)] = self.index
        data[self.program_offset : self.program_offset + len(self.program)] = self.program
        counter = _Counter(on_progress)
        read_spans(data, ((spec.offset, spec.end, span) for spec, span in self.spans), counter.add)
        for spec, fill in self.fills:
            place = data[spec.offset : spec.end]
            fill(place)
            place.release()
            counter.add(spec.nbytes)
        data.release()
        for file in self.files:
            file.check_again()


class _Counter:
    """Sum of increments: the running total that progress is reported in."""

    def __init__(self, report: Callable[[int], None] | None) -> None:
        self._report = report
        self._total_bytes = 0

    def add(self, n_bytes: int) -> None:
        self._total_bytes += n_bytes
        if self._report is not None:
            self._report(self._total_bytes)


def plan_image(
    sources: Sequence[SourceTensor],
    *,
    program: Program | None = None,
    metadata: Mapping[str, str] | None = None,
    files: Sequence[SourceFile] = (),
) -> ImagePlan:
    """Lay out an image of the given tensors.

    Args:
        sources: Tensors, in the order in which they will be listed.
        program: The graph, if the model has one.
        metadata: Strings kept in the header beside trims' own.
        files: Files that `fill` functions read; spans name theirs themselves.

    Raises:
        ImageError: A name twice, an unknown dtype, a tie to a later or smaller tensor, or too large a header.
    """
    draft = Layout.of(TensorSpec(source.name, source.dtype, source.shape, 0) for source in sources)
    draft.validate(data_bytes=1 << 62)
    position = align_up(index_size(draft), TENSOR_ALIGNMENT_BYTES)
    placed: dict[str, TensorSpec] = {}
    for source in sources:
        placed[source.name], position = _place(source, placed, position)
    layout = Layout(placed)
    encoded = program.encode() if program else b""
    data_bytes = position + len(encoded)
    index = encode_index(layout, program_offset=position, program_bytes=len(encoded), data_bytes=data_bytes)
    owned = [(placed[s.name], s) for s in sources if s.tied_to is None]
    head = encode_head([spec for spec, _ in owned], layout, index, (position, data_bytes), metadata or {})
    fills = [(spec, s.fill) for spec, s in owned if s.fill is not None and spec.nbytes]
    spans = [(spec, s.span) for spec, s in owned if s.span is not None and spec.nbytes]
    return ImagePlan(layout, head, data_bytes, index, encoded, position, fills, spans, files)


def _place(source: SourceTensor, placed: Mapping[str, TensorSpec], position: int) -> tuple[TensorSpec, int]:
    """Give the tensor its offset. Return the tensor and the next free, aligned position."""
    spec = TensorSpec(source.name, source.dtype, source.shape, position)
    if source.tied_to is None:
        return spec, align_up(spec.end, TENSOR_ALIGNMENT_BYTES)
    owner = placed.get(source.tied_to)
    if owner is None or owner.nbytes < spec.nbytes:
        raise ImageError(f"tensor {source.name!r} is tied to {source.tied_to!r}, which is not there or smaller")
    return TensorSpec(source.name, source.dtype, source.shape, owner.offset), position


def encode_head(
    owned: Sequence[TensorSpec],
    layout: Layout,
    index: bytes,
    program_span: tuple[int, int],
    metadata: Mapping[str, str],
) -> bytes:
    """Return the JSON header with its length: our own tensors under a free prefix, and pads so that no hole is left.

    Args:
        owned: All tensors but those that are tied to another.
        index: The binary index, which the data block begins with.
        program_span: Where in the data block the program begins and ends.
        metadata: Strings of the artifact.

    Raises ImageError for a header that is too large.
    """
    prefix = _PREFIX
    while any(spec.name.startswith(prefix) for spec in layout):
        prefix += "_"
    specs = (*owned, *_own_parts(prefix, len(index), program_span))
    return _header(specs, prefix, metadata, _tied(owned, layout), DATA_ALIGNMENT_BYTES)


def encode_outline(
    index_bytes: int, program_span: tuple[int, int], data_bytes: int, metadata: Mapping[str, str], *, alignment: int
) -> bytes:
    """Return the JSON header of an image that lists tensors in its index alone: to JSON they are one unnamed part.

    It is as short as a header can be, because it is made where a request waits.

    Args:
        index_bytes: Length of the binary index, which the data block begins with.
        program_span: Where in the data block the program begins and ends; the tensors follow.
        metadata: Strings of the artifact.
        alignment: Divisor of the header's length with the pads.

    Raises ImageError for a header that is too large.
    """
    end = program_span[1]
    tensors = TensorSpec(f"{_PREFIX}.tensors", "U8", (data_bytes - end,), end)
    return _header((*_own_parts(_PREFIX, index_bytes, program_span), tensors), _PREFIX, metadata, {}, alignment)


def _own_parts(prefix: str, index_bytes: int, program_span: tuple[int, int]) -> tuple[TensorSpec, TensorSpec]:
    begin, end = program_span
    return (
        TensorSpec(f"{prefix}.index", "U8", (index_bytes,), 0),
        TensorSpec(f"{prefix}.program", "U8", (end - begin,), begin),
    )


def _header(
    specs: Iterable[TensorSpec], prefix: str, metadata: Mapping[str, str], tied: Mapping[str, Any], alignment: int
) -> bytes:
    own = {"version": FORMAT_VERSION, "prefix": prefix, "tied": tied}
    told = json.dumps({**metadata, METADATA_KEY: json.dumps(own)}, separators=(",", ":"), ensure_ascii=False)
    entries = list(_entries(sorted(_placed(specs), key=_SPAN), prefix))
    text = "".join(('{"__metadata__":', told, ",", ",".join(entries), "}")).encode()
    if len(text) > MAX_HEADER_BYTES - DATA_ALIGNMENT_BYTES:
        raise ImageError(
            f"{len(entries)} tensors and pads make a header of {format_bytes(len(text))}; the limit is "
            f"{format_bytes(MAX_HEADER_BYTES)}"
        )
    padded = align_up(LENGTH.size + len(text), alignment) - LENGTH.size
    return LENGTH.pack(padded) + text.ljust(padded)


def _placed(specs: Iterable[TensorSpec]) -> list[_Placed]:
    return [
        (offset, offset + prod(shape) * DTYPE_BYTES[dtype], name, dtype, shape) for name, dtype, shape, offset in specs
    ]


def _entries(placed: Iterable[_Placed], prefix: str) -> Iterator[str]:
    """Yield tensors in order of offset, as JSON, with a named pad wherever alignment left a hole.

    Text is put together here and not by `json`, which takes four times as long.
    """
    position = 0
    for begin, end, name, dtype, shape in placed:
        if begin > position:
            yield f'"{prefix}.pad.{position}":{_text("U8", (begin - position,), position, begin)}'
        yield f"{encode_basestring(name)}:{_text(dtype, shape, begin, end)}"
        position = end


def _text(dtype: str, shape: tuple[int, ...], begin: int, end: int) -> str:
    extents = ",".join(map(str, shape))
    return f'{{"dtype":"{dtype}","shape":[{extents}],"data_offsets":[{begin},{end}]}}'


def _entry(spec: TensorSpec, end: int) -> dict[str, Any]:
    return {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [spec.offset, end]}


def _tied(owned: Sequence[TensorSpec], layout: Layout) -> dict[str, dict[str, Any]]:
    """Return tied tensors for readers of the JSON: safetensors itself allows no two names for one range."""
    names = {spec.name for spec in owned}
    return {spec.name: _entry(spec, spec.end) for spec in layout if spec.name not in names}
