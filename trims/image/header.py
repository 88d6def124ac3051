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
    from collections.abc import Mapping

#: The key of `__metadata__` under which an image says that it is one, and which version it says.
METADATA_KEY = "trims"
FORMAT_VERSION = 1
_FIELDS = {"dtype", "shape", "data_offsets"}
_MAX_OFFSET = 1 << 62


class SafetensorsHeader(NamedTuple):
    """A checked header.

    Attributes:
        layout: All tensors; offsets from the start of the data block.
        metadata: The `__metadata__` strings.
        data_start: Where the data block begins in the file, in bytes.
        data_bytes: Its length.
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
    metadata = _metadata(entries.pop("__metadata__", {}), name)
    layout = Layout.of(_tensor(key, value, name) for key, value in entries.items())
    data_bytes = file_bytes - data_start
    _check_dense(layout, data_bytes, name)
    return SafetensorsHeader(layout, metadata, data_start, data_bytes)


def _load_json(text: bytes, name: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ArtifactError(f"{name}: the header names {_first_repeated(pairs)!r} twice")
        return found

    try:
        entries = json.loads(text, object_pairs_hook=unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{name}: the header is not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise ArtifactError(f"{name}: the header is not a JSON object")
    return entries


def _first_repeated(pairs: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    return next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _metadata(value: Any, name: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ArtifactError(f"{name}: __metadata__ is not a map from strings to strings")
    return value


def _tensor(key: str, value: Any, name: str) -> TensorSpec:
    if not isinstance(value, dict) or set(value) != _FIELDS:
        raise ArtifactError(f"{name}: tensor {key!r} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
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
    return TensorSpec(key, dtype, tuple(shape), offsets[0])


def _is_unicode(text: str) -> bool:
    """False for the lone surrogates that JSON can spell and UTF-8 cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < _MAX_OFFSET for value in values)


def _check_dense(layout: Layout, data_bytes: int, name: str) -> None:
    """The data block is covered once, without hole or overlap."""
    position = 0
    for spec in sorted(layout, key=lambda spec: (spec.offset, spec.end)):
        if spec.offset != position:
            what = "overlaps its neighbour" if spec.offset < position else "leaves a hole before it"
            raise ArtifactError(f"{name}: tensor {spec.name!r} at {spec.offset} {what} (expected {position})")
        position = spec.end
    if position != data_bytes:
        raise ArtifactError(f"{name}: the tensors take {position} bytes, the data block has {data_bytes}")
