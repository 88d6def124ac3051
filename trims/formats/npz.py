"""npz artifacts: a zip file of numpy arrays, as `numpy.savez` and `savez_compressed` write it.

Member headers are parsed without pickle; object arrays are refused. Big-endian and Fortran-ordered arrays are converted
while they are written. It runs in a child: what a zip file says of its members' sizes is not to be believed by a
process that must live.
"""

from __future__ import annotations

import contextlib
import lzma
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trims.core.errors import ArtifactError
from trims.core.layout import element_count
from trims.formats.base import check_options
from trims.image.descriptors import explain_descriptors, lacks_descriptors
from trims.image.plan import ImagePlan, SourceTensor, plan_image
from trims.image.source import SourceFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import IO

    import numpy as np
    from numpy.typing import NDArray

    from trims.formats.base import Artifact

_ZIP_MAGIC = b"PK\x03\x04"
_LOCAL_HEADER = struct.Struct("<26xHH")
_CHUNK_BYTES = 8 << 20
#: deflate's best is about 1:1032: more is a lie.
_MAX_RATIO = 1100
_MAX_HEADER_BYTES = 1 << 20
#: numpy's kind and item size -> ours. ml_dtypes' types save as raw bytes and cannot be told apart: not here.
_DTYPES = {
    "b1": "BOOL", "u1": "U8", "i1": "I8", "u2": "U16", "i2": "I16", "u4": "U32", "i4": "I32", "u8": "U64", "i8": "I64",
    "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64",
}  # fmt: skip


class OneNumpyFile:
    """What converters of numpy's own files share: one file, and no options."""

    def needs_child(self, options: Mapping[str, Any]) -> bool:
        """Always: a hostile zip file may eat time and memory, and numpy is not imported where others wait."""
        del options
        return True

    def frameworks(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """None: the bytes do not depend on numpy's version."""
        del options
        return ()

    def files(self, main: Path, options: Mapping[str, Any]) -> tuple[Path, ...]:
        """The one file."""
        check_options(main, options, ())
        return (SourceFile.look(main).path,)


class NpzConverter(OneNumpyFile):
    """See the module."""

    format: ClassVar[str] = "npz"
    version: ClassVar[int] = 1
    host_specific: ClassVar[bool] = False

    def claims(self, main: Path, first_bytes: bytes) -> bool:
        """A zip file whose first member is an array, or whose suffix says npz."""
        if not first_bytes.startswith(_ZIP_MAGIC) or len(first_bytes) < _LOCAL_HEADER.size:
            return False
        name_bytes, _ = _LOCAL_HEADER.unpack_from(first_bytes)
        name = first_bytes[_LOCAL_HEADER.size : _LOCAL_HEADER.size + name_bytes]
        return name.endswith(b".npy") or main.suffix == ".npz"

    def plan(self, artifact: Artifact) -> ImagePlan:
        """Read the headers of all members."""
        main = artifact.files[0]
        check_options(main, artifact.options, ())
        file = SourceFile.look(main)
        with _archive(main) as archive:
            sources = [_describe(archive, info, main) for info in archive.infolist()]
        return plan_image(sources, files=(file,))


@contextlib.contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """The open archive; whatever is wrong with it becomes an ArtifactError that names it."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (
        zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, OSError, NotImplementedError, RuntimeError
    ) as error:  # fmt: skip
        if isinstance(error, OSError) and lacks_descriptors(error):
            raise explain_descriptors(error) from error
        raise ArtifactError(f"{path}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Member:
    """One array of the archive, as its own header describes it."""

    path: Path
    name: str
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    def fill(self, place: memoryview) -> None:
        """Unpack into the place, as little endian and row-major; the zip file's checksum is checked on the way."""
        import numpy as np

        target = np.frombuffer(place, dtype=self.dtype.newbyteorder("<")).reshape(self.shape)
        with _archive(self.path) as archive, archive.open(self.name) as stream:
            read_header(stream, self.name)
            if self.fortran:
                target[...] = np.frombuffer(stream.read(), dtype=self.dtype).reshape(self.shape, order="F")
            else:
                self._fill_in_order(stream, target.reshape(-1))

    def _fill_in_order(self, stream: IO[bytes], flat: NDArray[Any]) -> None:
        import numpy as np

        step = _CHUNK_BYTES // self.dtype.itemsize
        for begin in range(0, flat.size, step):
            part = flat[begin : begin + step]
            part[...] = np.frombuffer(stream.read(part.nbytes), dtype=self.dtype)


def _describe(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> SourceTensor:
    where = f"{path}: member {info.filename!r}"
    if not info.filename.endswith(".npy"):
        raise ArtifactError(f"{where} is no array")
    if info.file_size > _MAX_RATIO * info.compress_size + _MAX_HEADER_BYTES:
        raise ArtifactError(f"{where} claims to unpack {info.compress_size} bytes into {info.file_size}")
    with archive.open(info) as stream:
        shape, fortran, dtype = read_header(stream, where)
        data_bytes = info.file_size - stream.tell()
    kind = kind_of(dtype, where)
    if data_bytes != element_count(shape) * dtype.itemsize:
        raise ArtifactError(f"{where} has {data_bytes} bytes for an array of {kind}{list(shape)}")
    member = _Member(path, info.filename, shape, fortran, dtype)
    return SourceTensor(info.filename.removesuffix(".npy"), kind, shape, fill=member.fill)


def kind_of(dtype: np.dtype[Any], where: str) -> str:
    """Our name of an array's dtype. Raises ArtifactError with the way out."""
    kind = _DTYPES.get(f"{dtype.kind}{dtype.itemsize}")
    if kind is None:
        remedy = "; save it as complex64" if dtype.kind == "c" else "; save it as another one"
        raise ArtifactError(f"{where} has the dtype {dtype}, which images do not know{remedy}")
    return kind


def read_header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is column-major, and dtype of an array as its header describes it; leaves the stream after it.

    Raises ArtifactError; ValueError if numpy cannot read it.
    """
    from numpy.lib import format as npy

    readers: dict[tuple[int, int], Callable[..., Any]] = {(1, 0): npy.read_array_header_1_0}
    readers[2, 0] = npy.read_array_header_2_0
    version = npy.read_magic(stream)
    if version not in readers:
        raise ArtifactError(f"{where} is of npy version {version}, which is not read")
    shape, fortran, dtype = readers[version](stream)
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise ArtifactError(f"{where} holds objects or records, not numbers")
    if any(type(extent) is not int or extent < 0 for extent in shape):
        raise ArtifactError(f"{where} has the impossible shape {shape}")
    return shape, fortran, dtype
