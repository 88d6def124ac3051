"""The program of an image: the graph without weights, and what a framework needs to run it.

Kinds in use: `torch-skeleton` (a pickled module whose tensors are placeholders), `torch-builder` (the name of the
function that builds the module, where no skeleton was made yet), `onnxruntime` (a model optimized for this host whose
initializers are tensors of the image), `onnx-original` (the model as published, where none was optimized yet),
`mxnet-symbol` (symbol JSON), `transformers` (files of a Hugging Face folder, of which sessions make the module), and
`transformers-code` (the same, with Python files that run). The body is opaque here.
"""

from __future__ import annotations

import json
import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Mapping

TORCH_BUILDER, TORCH_SKELETON = "torch-builder", "torch-skeleton"
#: The graph of an ONNX model as published, without its large weights: nothing was optimized yet.
ONNX_ORIGINAL = "onnx-original"
#: Files of a Hugging Face folder: module and tokenizer are made of them by the installed libraries.
TRANSFORMERS = "transformers"
#: Files of a folder that has Python files, which are imported.
TRANSFORMERS_CODE = "transformers-code"
#: Kinds that run code when they are used: only to be taken from a store that one trusts like one's own files.
EXECUTABLE_KINDS = frozenset({TORCH_SKELETON, TORCH_BUILDER, TRANSFORMERS_CODE})
#: Attribute of a program that is not what its converter makes of other models: why it is not, in a sentence.
WHY = "why"
_LENGTH = struct.Struct("<I")
_MAX_HEAD_BYTES = 16 << 20


class Program(NamedTuple):
    """A graph without weights.

    Attributes:
        kind: Name of the framework client that understands the body.
        attributes: JSON values that describe the body (versions, input names, tied names...).
    """

    kind: str
    attributes: Mapping[str, Any] = MappingProxyType({})
    body: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes as carried in the image: a 4-byte length, JSON head, body."""
        head = json.dumps({"kind": self.kind, "attributes": dict(self.attributes)}, sort_keys=True).encode()
        return _LENGTH.pack(len(head)) + head + self.body

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Program:
        """Read `encode`'s bytes back. Raises ImageError when they are not a program."""
        if len(data) < _LENGTH.size:
            raise ImageError(f"a program of {len(data)} bytes is too short to be one")
        (head_bytes,) = _LENGTH.unpack_from(data)
        end = _LENGTH.size + head_bytes
        if head_bytes > _MAX_HEAD_BYTES or end > len(data):
            raise ImageError(f"the program's head claims {head_bytes} bytes of {len(data)}")
        try:
            head = json.loads(bytes(data[_LENGTH.size : end]))
            return cls(str(head["kind"]), dict(head["attributes"]), bytes(data[end:]))
        except (ValueError, KeyError, TypeError) as error:
            raise ImageError(f"the program's head is not readable: {error}") from error
