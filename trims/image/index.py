"""The binary index: where each tensor lies, readable without parsing JSON.

It is the first tensor of the data block, so that an attaching process finds it from the header length alone.
Little endian throughout:

    header   magic 8s | tensor count u32 | dimension count u32 | names bytes u64 | index bytes u64
             | program offset u64 | program bytes u64 | data bytes u64 | checksum u64                (64 bytes)
    records  name offset u32 | name bytes u32 | data offset u64 | first dimension u32 | dtype u8 | rank u8 | zero u16
    extents  u64 each
    names    UTF-8, end to end

The checksum is that of `trims.memory.row_sums`, of the whole image with zeros in its place; 0 stands for none, as in
images of versions before it, which end the header with padding.
"""

from __future__ import annotations

import struct
from itertools import accumulate, chain, repeat
from math import prod

from trims.core.errors import ArtifactError, ImageError
from trims.core.layout import DTYPE_BYTES, DTYPE_NUMBERS, DTYPES, MAX_DIMENSIONS, RESERVED, Layout, TensorSpec
from trims.core.named import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

#: Length of the JSON header, which every safetensors file begins with.
LENGTH = struct.Struct("<Q")
#: Largest header, in bytes: the safetensors library stops at 100 MB, model hubs at 25 MB. The smaller limit bounds what
#: a child parses before the first byte of weights is read, and admits some 200,000 tensors.
MAX_HEADER_BYTES = 25_000_000
MAGIC = b"TRIMSIX1"
HEADER = struct.Struct("<8sIIQQQQQQ")
#: Place of the checksum in the header.
CHECKSUM = slice(HEADER.size - 8, HEADER.size)
RECORD = struct.Struct("<IIQIBBH")
_U32 = struct.Struct("<I")
#: Most occurrences of a tensor's name in the text of all names, before the whole table is read for it.
_MOST_OCCURRENCES = 16
_WIDTHS = tuple(DTYPE_BYTES.values())


class IndexHeader(NamedTuple):
    """The fixed part: enough to find everything else in O(1).

    Offsets count from the start of the data block; `program_bytes` is 0 when the image has no program, and `checksum`
    when it has none.
    """

    tensors: int
    dimensions: int
    names_bytes: int
    index_bytes: int
    program_offset: int
    program_bytes: int
    data_bytes: int
    checksum: int = 0


def header_length(prefix: bytes | memoryview, file_bytes: int, name: str) -> int:
    """Return the JSON's length from the first 8 bytes. Raises ArtifactError when it cannot be true."""
    if len(prefix) < LENGTH.size or file_bytes < LENGTH.size:
        raise ArtifactError(f"{name}: {file_bytes} bytes are too short for a safetensors file")
    (length,) = LENGTH.unpack_from(prefix)
    if length > MAX_HEADER_BYTES:
        raise ArtifactError(f"{name}: the header claims {length} bytes; more than {MAX_HEADER_BYTES} are refused")
    if LENGTH.size + length > file_bytes:
        raise ArtifactError(f"{name}: the header claims {length} bytes, the file has {file_bytes}: truncated?")
    return int(length)


def index_size(layout: Layout) -> int:
    """Return the bytes that the index of this layout takes."""
    specs = layout.tensors.values()
    return index_bytes([spec.name for spec in specs], [spec.shape for spec in specs])


def index_bytes(names: Collection[str], shapes: Iterable[tuple[int, ...]]) -> int:
    """Return the bytes that the index of these tensors takes. Raises ImageError for a name that is no Unicode."""
    text = "".join(names)
    text_bytes = len(text) if text.isascii() else sum(len(_encode_name(name)) for name in names)
    return HEADER.size + len(names) * RECORD.size + 8 * sum(map(len, shapes)) + text_bytes


def encode_index(layout: Layout, *, program_offset: int, program_bytes: int, data_bytes: int) -> bytes:
    """Serialise the layout. The result has exactly `index_size(layout)` bytes."""
    columns = tuple(zip(*layout.tensors.values(), strict=True)) or ((), (), (), ())
    return encode_columns(*columns, program_offset=program_offset, program_bytes=program_bytes, data_bytes=data_bytes)


def encode_columns(
    names: Sequence[str],
    dtypes: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    offsets: Sequence[int],
    *,
    program_offset: int,
    program_bytes: int,
    data_bytes: int,
) -> bytes:
    """Serialise tensors that are given by column, in one order. Raises ImageError for a name that is no Unicode."""
    text = "".join(names)
    encoded = names if text.isascii() else [_encode_name(name) for name in names]
    lengths, ranks = list(map(len, encoded)), list(map(len, shapes))
    columns = (
        accumulate(lengths, initial=0),
        lengths,
        offsets,
        accumulate(ranks, initial=0),
        map(DTYPE_NUMBERS.__getitem__, dtypes),
        ranks,
    )
    records = b"".join(map(RECORD.pack, *columns, repeat(0)))
    extents = list(chain.from_iterable(shapes))
    size = HEADER.size + len(records) + 8 * len(extents) + sum(lengths)
    counts = (len(names), len(extents), sum(lengths), size)
    header = HEADER.pack(MAGIC, *counts, program_offset, program_bytes, data_bytes, 0)
    return b"".join((header, records, struct.pack(f"<{len(extents)}Q", *extents), text.encode()))


def decode_header(data: bytes | memoryview) -> IndexHeader:
    """Read and check the fixed part. Raises ImageError."""
    if len(data) < HEADER.size:
        raise ImageError(f"the data block of {len(data)} bytes is too short for an index")
    magic, tensors, dimensions, names, size, program_offset, program, total, checksum = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ImageError(f"no trims index: the data block begins with {bytes(magic)!r}")
    if size != HEADER.size + tensors * RECORD.size + 8 * dimensions + names or size > total:
        raise ImageError(f"the index claims {size} bytes, which its own counts contradict")
    if program_offset + program > total:
        raise ImageError("the program lies outside the data block")
    return IndexHeader(tensors, dimensions, names, size, program_offset, program, total, checksum)


def decode_index(data: bytes | memoryview) -> Layout:
    """Read the whole table from the start of a data block. Raises ImageError.

    Tensors need not be aligned to their elements: that is a rule for images that are sealed (`trims.image.check`), and
    not for artifacts in place.

    Cost: about 1.5 microseconds a tensor, no JSON.
    """
    header = decode_header(data)
    if header.index_bytes > len(data):
        raise ImageError(f"the index claims {header.index_bytes} bytes of a block of {len(data)}")
    extents_at = HEADER.size + header.tensors * RECORD.size
    names_at = extents_at + 8 * header.dimensions
    extents = struct.unpack_from(f"<{header.dimensions}Q", data, extents_at)
    names = bytes(data[names_at : header.index_bytes])
    records = RECORD.iter_unpack(data[HEADER.size : extents_at])
    return Layout(_tensors(records, extents, names, header))


def find_tensor(data: bytes | memoryview, name: str) -> TensorSpec | None:
    """Return one tensor of the table at the start of a data block, without reading the others. Raises ImageError.

    Returns None if that is not how it is found: there is none, its name occurs in many others, or names do not lie in
    the order of their records, as `encode_index` writes them. `decode_index` knows then.
    """
    header = decode_header(data)
    if header.index_bytes > len(data):
        raise ImageError(f"the index claims {header.index_bytes} bytes of a block of {len(data)}")
    extents_at = HEADER.size + header.tensors * RECORD.size
    names = bytes(data[extents_at + 8 * header.dimensions : header.index_bytes])
    wanted, at = name.encode("utf-8", "surrogatepass"), -1

    for _ in range(_MOST_OCCURRENCES):
        if (at := names.find(wanted, at + 1)) < 0:
            return None
        number = _first_behind(data, header.tensors, at)
        if number < header.tensors:
            found = RECORD.unpack_from(data, HEADER.size + number * RECORD.size)
            _, _, offset, first, dtype, rank, zero = found
            if found[:2] == (at, len(wanted)) and first + rank <= header.dimensions:
                extents = struct.unpack_from(f"<{rank}Q", data, extents_at + 8 * first)
                record = (0, len(wanted), offset, 0, dtype, rank, zero)
                return _tensors([record], extents, wanted, header._replace(tensors=1))[name]
    return None


def _first_behind(data: bytes | memoryview, tensors: int, at: int) -> int:
    """Return the first record whose name does not begin before `at`; `bisect` would take longer to import."""
    low, high = 0, tensors
    while low < high:
        middle = (low + high) // 2
        if _U32.unpack_from(data, HEADER.size + middle * RECORD.size)[0] < at:
            low = middle + 1
        else:
            high = middle
    return low


def _tensors(
    records: Iterable[tuple[int, ...]], extents: tuple[int, ...], names: bytes, header: IndexHeader
) -> dict[str, TensorSpec]:
    """Build the table in one loop, with few calls for each record: most of what attaching a model costs.

    Raises ImageError.
    """
    try:
        text = names.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ImageError(f"the tensor names of the index are not UTF-8: {error}") from error
    plain = len(text) == len(names)  # ASCII: the offsets of bytes are those of characters
    data_bytes, found = header.data_bytes, {}
    for name_at, name_bytes, offset, first, number, rank, zero in records:
        name_end, end = name_at + name_bytes, first + rank
        if number >= len(DTYPES) or zero or name_end > len(names) or end > len(extents):
            raise ImageError("a record of the index points outside it")
        name = text[name_at:name_end] if plain else _decode_name(names[name_at:name_end])
        shape, dtype = extents[first:end], DTYPES[number]
        spec = found[name] = TensorSpec(name, dtype, shape, offset)
        # As `Layout.validate` has it: numbers of a record are not negative, and a known dtype has a width.
        if rank > MAX_DIMENSIONS or offset + prod(shape) * _WIDTHS[number] > data_bytes or name == RESERVED:
            Layout({name: spec}).validate(data_bytes, aligned=False)
    if len(found) < header.tensors:
        raise ImageError(f"the index describes {header.tensors} tensors by {len(found)} names")
    return found


def _decode_name(name: bytes) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ImageError(f"a tensor name of the index is not UTF-8: {error}") from error


def _encode_name(name: str) -> bytes:
    try:
        return name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ImageError(f"tensor name {name!r} is not valid Unicode: {error.reason}") from error
