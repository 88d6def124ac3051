"""The safetensors header with every check that its format asks for.

Used on artifacts (which may come from anywhere) and on images (which a converter child wrote). It reads text
and numbers only: a lying header ends here, before a byte of weights is touched.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from trims.core.errors import ArtifactError
from trims.core.layout import DTYPE_BYTES, MAX_DIMENSIONS, Layout, TensorSpec, element_count
from trims.image.index import LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Key of `__metadata__` under which an image says that it is one, and of which version.
METADATA_KEY = "trims"
FORMAT_VERSION = 1
#: Fields of a tensor, in the order in which the safetensors library writes them.
_WRITTEN = ("dtype", "shape", "data_offsets")
_FIELDS = set(_WRITTEN)
_MAX_OFFSET = 1 << 62
#: Dtypes of safetensors whose elements are not whole bytes.
_PACKED = frozenset({"F4", "F6_E2M3", "F6_E3M2"})


class SafetensorsHeader(NamedTuple):
    """A checked header.

    Attributes:
        layout: All tensors; offsets from the start of the data block.
        metadata: The `__metadata__` strings.
        data_start: Where the data block begins in the file, in bytes.
    """

    layout: Layout
    metadata: Mapping[str, str] = MappingProxyType({})
    data_start: int = 0
    data_bytes: int = 0


def parse_header(text: bytes | memoryview, file_bytes: int, name: str) -> SafetensorsHeader:
    """Read the JSON (without its 8-byte length) of a file of this length.

    Raises ArtifactError naming the file and the first rule it breaks: JSON that is none, a name twice, an
    unknown dtype, a size that does not fit the shape, an overlap, a hole, bytes missing or left over.
    """
    data_start = LENGTH.size + len(text)
    entries = _load_json(bytes(text), name)
    metadata = _metadata(entries.pop("__metadata__", ()), name)
    tensors, position, in_order = {}, 0, True
    for key, value in entries.items():
        tensors[key], begin, end = _plain_tensor(key, value) or _tensor(key, value, name)
        in_order, position = in_order and begin == position, end
    layout = Layout(tensors)
    data_bytes = file_bytes - data_start
    if not in_order or position != data_bytes:
        _check_dense(layout, data_bytes, name)
    return SafetensorsHeader(layout, metadata, data_start, data_bytes)


def _load_json(text: bytes, name: str) -> dict[str, Any]:
    """Return the outermost object; each other one is a tuple of its pairs, and so no list."""
    try:
        pairs = _decode(text.decode())
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{name}: the header is not JSON: {error}") from error
    if type(pairs) is not tuple:
        raise ArtifactError(f"{name}: the header is not a JSON object")
    return _unique(pairs, name)


def _unique(pairs: tuple[tuple[str, Any], ...], name: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ArtifactError(f"{name}: the header names {_first_repeated(pairs)!r} twice")
    return found


def _first_repeated(pairs: Iterable[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    return next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


#: Objects become tuples of their pairs: a function of ours, called for each, would take longer than all the rest.
_decode = json.JSONDecoder(object_pairs_hook=tuple, parse_constant=_refuse_constant).decode


def _metadata(value: Any, name: str) -> dict[str, str]:
    if value is None:  # as some writers say that there is none
        return {}
    found = _unique(value, name) if type(value) is tuple else None
    if found is None or not all(isinstance(text, str) for text in found.values()):
        raise ArtifactError(f"{name}: __metadata__ is not a map from strings to strings")
    return found


def _plain_tensor(key: str, value: Any) -> tuple[TensorSpec, int, int] | None:
    """Return a tensor as nearly all are written, with its first byte and its end; None for any other, right or wrong.

    It is called for each tensor where a request waits, so it does all in one go.
    """
    try:
        (first, dtype), (second, shape), (third, (begin, end)) = value
        nbytes = DTYPE_BYTES[dtype]
    except (ValueError, TypeError, KeyError):
        return None
    if (first, second, third) != _WRITTEN or type(shape) is not list or len(shape) > MAX_DIMENSIONS:
        return None
    for extent in shape:
        if type(extent) is not int or not 0 <= extent < _MAX_OFFSET:
            return None
        nbytes *= extent
    numbers = type(begin) is int and type(end) is int and begin >= 0 and begin + nbytes == end < _MAX_OFFSET
    plain = numbers and type(value) is tuple and key.isascii()
    return (TensorSpec(key, dtype, tuple(shape), begin), begin, end) if plain else None


def _tensor(key: str, value: Any, name: str) -> tuple[TensorSpec, int, int]:
    """Return any tensor, with its first byte and its end; fields of other names are ignored. Raises ArtifactError."""
    known = tuple(pair for pair in value if pair[0] in _FIELDS) if type(value) is tuple else ()
    fields = _unique(known, name)
    if set(fields) != _FIELDS:
        raise ArtifactError(f"{name}: tensor {key!r} must have dtype, shape and data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if isinstance(dtype, str) and dtype in _PACKED:
        raise ArtifactError(
            f"{name}: tensor {key!r} has the dtype {dtype}, whose elements share bytes, which images do not hold; "
            "save its bytes as U8"
        )
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise ArtifactError(f"{name}: tensor {key!r} has the unsupported dtype {dtype!r}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise ArtifactError(f"{name}: tensor {key!r} has the impossible shape {shape!r}"[:300])
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ArtifactError(f"{name}: tensor {key!r} has the impossible data_offsets {offsets!r}"[:300])
    if not key.isascii() and not _is_unicode(key):
        raise ArtifactError(f"{name}: the tensor name {key!r} is not valid Unicode")
    expected = element_count(tuple(shape)) * DTYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != expected:
        raise ArtifactError(
            f"{name}: tensor {key!r} of {dtype}{shape} takes {expected} bytes, its data_offsets give "
            f"{offsets[1] - offsets[0]}"
        )
    return TensorSpec(key, dtype, tuple(shape), offsets[0]), *offsets


def _is_unicode(text: str) -> bool:
    """Return whether a text is without the lone surrogates that JSON can spell and UTF-8 cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < _MAX_OFFSET for value in values)


def _check_dense(layout: Layout, data_bytes: int, name: str) -> None:
    """Check that the data block is covered once, without hole or overlap."""
    position = 0
    for spec in sorted(layout, key=lambda spec: (spec.offset, spec.end)):
        if spec.offset != position:
            what = "overlaps its neighbour" if spec.offset < position else "leaves a hole before it"
            raise ArtifactError(f"{name}: tensor {spec.name!r} at {spec.offset} {what} (expected {position})")
        position = spec.end
    if position != data_bytes:
        raise ArtifactError(f"{name}: the tensors take {position} bytes, the data block has {data_bytes}")
