"""Reading an image that lies in memory: an attached segment, a mapped file. Standard library only.

`ImageView` trusts nothing it reads: every offset is checked against the length of the buffer. It does not check
digests; that was done when the replica was sealed. Header and program are imported when they are asked for:
attaching and reading weights need none of them.
"""

from __future__ import annotations

import json
from functools import cached_property

from trims.core.errors import ArtifactError, ImageError, TensorNotFoundError
from trims.image.index import (
    HEADER,
    LENGTH,
    MAGIC,
    IndexHeader,
    decode_header,
    decode_index,
    find_tensor,
    header_length,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims.core.layout import Layout, TensorSpec
    from trims.image.header import SafetensorsHeader
    from trims.image.program import Program


#: Tensors that are found one by one before the whole table is read: reading it takes longer than finding a few.
_FIND_EACH = 4


class ImageView:
    """A read-only look at an image.

    Construction is O(1) in the number of tensors; the table is read on the first look at `layout`.
    Every memoryview handed out keeps the underlying memory alive.

    Args:
        data: The whole image. Raises ImageError at once when its first bytes are not an image's.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        #: Tensors that were found one by one before the whole table was read.
        self._found: dict[str, TensorSpec] = {}
        try:
            length = header_length(data[: LENGTH.size], len(data), "image")
        except ArtifactError as error:
            raise ImageError(str(error)) from error
        self.data_start: int = LENGTH.size + length
        self.index_header: IndexHeader = decode_header(data[self.data_start :])
        if self.data_start + self.index_header.data_bytes != len(data):
            raise ImageError(
                f"the index describes {self.index_header.data_bytes} bytes of data, "
                f"the image has {len(data) - self.data_start}: truncated?"
            )

    @property
    def nbytes(self) -> int:
        """Return the length of the whole image in bytes."""
        return len(self._data)

    @cached_property
    def layout(self) -> Layout:
        """Return all tensors by name; offsets from `data_start`."""
        return decode_index(self._data[self.data_start :])

    @cached_property
    def header(self) -> SafetensorsHeader:
        """Return the JSON header, fully checked: slower than `layout` and never needed to read weights."""
        from trims.image.header import parse_header

        try:
            return parse_header(self._data[LENGTH.size : self.data_start], len(self._data), "image")
        except ArtifactError as error:
            raise ImageError(str(error)) from error

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return the strings that the artifact carried in its header."""
        from trims.image.header import METADATA_KEY

        return {key: text for key, text in self.header.metadata.items() if key != METADATA_KEY}

    def string(self, key: str) -> str | None:
        """Return one of those strings, in a header that trims wrote: found without parsing the header."""
        sought = f"{json.dumps(key)}:".encode()
        text = bytes(self._data[LENGTH.size : self.data_start])
        at = text.find(sought + b'"')  # a name has its quotation marks escaped, and a tensor of this name an object
        if at < 0:
            return None
        try:
            found, _ = json.JSONDecoder().raw_decode(text[at + len(sought) :].decode())
        except ValueError as error:
            raise ImageError(f"the string {key!r} of the header is not readable: {error}") from error
        return str(found)

    def program(self) -> Program | None:
        """Return the graph without weights, if the image carries one."""
        from trims.image.program import Program

        index = self.index_header
        if not index.program_bytes:
            return None
        begin = self.data_start + index.program_offset
        return Program.decode(self._data[begin : begin + index.program_bytes])

    def spec(self, name: str) -> TensorSpec:
        """Return the description of one tensor. Raises TensorNotFoundError."""
        if "layout" not in self.__dict__ and len(self._found) < _FIND_EACH and isinstance(name, str):
            found = self._found.get(name) or find_tensor(self._data[self.data_start :], name)
            if found is not None:
                self._found[name] = found
                return found
        try:
            return self.layout.tensors[name]
        except KeyError:
            raise TensorNotFoundError(f"the image has no tensor {name!r}{_near(name, self.layout)}") from None

    def tensor(self, name: str) -> memoryview:
        """Return the bytes of one tensor, without copying. Raises TensorNotFoundError."""
        spec = self.spec(name)
        return self._data[self.data_start + spec.offset : self.data_start + spec.end]


def is_image(data: bytes | memoryview) -> bool:
    """Return whether a file's first bytes (header and 64 more) are an image's, whatever else is wrong with it."""
    if len(data) < LENGTH.size:
        return False
    start = LENGTH.size + LENGTH.unpack_from(data)[0]
    return len(data) >= start + HEADER.size and bytes(data[start : start + len(MAGIC)]) == MAGIC


def _near(name: str, layout: Layout) -> str:
    """Return a hint for the message; difflib is imported only when something went wrong."""
    import difflib

    near = difflib.get_close_matches(name, layout.tensors, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; it has {len(layout)} tensors"
