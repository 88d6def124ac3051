"""Files as they are, byte for byte, for programs that read them by their framework's own loader.

The image has one tensor, `bytes`. No file is claimed: a manifest says `format: bytes`, and unmodified programs ask by a
name of the form of `parse_file_name`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from trims.formats.one_file import OneFile
from trims.image.plan import Contents, ImagePlan, SourceTensor, plan_image
from trims.image.source import FileSpan, SourceFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trims.formats.base import Artifact

#: Name of the format, and of its tensor.
BYTES = "bytes"


class VerbatimConverter(OneFile):
    """See the module."""

    format: ClassVar[str] = BYTES
    version: ClassVar[int] = 1
    host_specific: ClassVar[bool] = False

    def needs_child(self, options: Mapping[str, Any]) -> bool:
        """Return False: nothing of the file is parsed."""
        del options
        return False

    def claims(self, main: Path, first_bytes: bytes) -> bool:
        """Return False: a file is served by its own format unless its bytes are asked for."""
        del main, first_bytes
        return False

    def plan(self, artifact: Artifact) -> ImagePlan:
        """Lay out an image of the file's bytes."""
        source = _source(artifact)
        assert source.span is not None
        return plan_image([source], files=(source.span.file,))

    def contents(self, artifact: Artifact) -> Contents:
        """Return the file as one span."""
        return Contents([_source(artifact)])


def _source(artifact: Artifact) -> SourceTensor:
    file = SourceFile.look(artifact.files[0])
    return SourceTensor(BYTES, "U8", (file.nbytes,), span=FileSpan(file, 0))
