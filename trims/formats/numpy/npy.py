"""npy artifacts: one array as `numpy.save` writes it. In the image it is called `arr_0`, as `numpy.savez` would.

One that is little endian and row-major is served in place as well, without numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from trims.core.errors import ArtifactError
from trims.core.layout import element_count
from trims.formats.base import check_options
from trims.formats.numpy.header import MAGIC, read_array
from trims.formats.numpy.npz import OneNumpyFile, kind_of, read_header
from trims.image.plan import Contents, ImagePlan, SourceTensor, plan_image
from trims.image.source import FileSpan, SourceFile, open_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np

    from trims.formats.base import Artifact

_NAME = "arr_0"


class NpyConverter(OneNumpyFile):
    """See the module."""

    format: ClassVar[str] = "npy"
    version: ClassVar[int] = 1
    host_specific: ClassVar[bool] = False

    def claims(self, main: Path, first_bytes: bytes) -> bool:
        """Return whether the file begins with numpy's magic bytes."""
        del main
        return first_bytes.startswith(MAGIC)

    def plan(self, artifact: Artifact) -> ImagePlan:
        """Read the header; an array that lies as the image wants it is copied from file to file."""
        main = artifact.files[0]
        check_options(main, artifact.options, ())
        file = SourceFile.look(main)
        try:
            with main.open("rb") as stream:
                shape, fortran, dtype = read_header(stream, str(main))
                offset = stream.tell()
        except (ValueError, EOFError) as error:
            raise ArtifactError(f"{main}: not an array of numpy's: {error}") from error
        kind = kind_of(dtype, str(main))
        nbytes = element_count(shape) * dtype.itemsize
        if file.nbytes - offset != nbytes:
            raise ArtifactError(f"{main} has {file.nbytes - offset} bytes for an array of {kind}{list(shape)}")
        if dtype.byteorder != ">" and not fortran:
            source = SourceTensor(_NAME, kind, shape, span=FileSpan(file, offset))
        else:
            source = SourceTensor(_NAME, kind, shape, fill=_rearranged(main, offset, shape, fortran, dtype))
        return plan_image([source], files=(file,))

    def contents(self, artifact: Artifact) -> Contents:
        """Return the contents that the header describes, read without numpy."""
        check_options(artifact.files[0], artifact.options, ())
        file = SourceFile.look(artifact.files[0])
        with open_source(file.path) as fd:
            found = read_array(fd, 0, file.nbytes)
            file.check(fd)
        return Contents([SourceTensor(_NAME, found.dtype, found.shape, span=FileSpan(file, found.offset))])


def _rearranged(
    path: Path, offset: int, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]
) -> Callable[[memoryview], None]:
    """Return a function that writes the array as little endian and row-major."""

    def fill(place: memoryview) -> None:
        import numpy as np

        stored = np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order="F" if fortran else "C")
        np.frombuffer(place, dtype=dtype.newbyteorder("<")).reshape(shape)[...] = stored

    return fill
