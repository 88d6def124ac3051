"""npz artifacts: a zip file of numpy arrays, as `numpy.savez` and `savez_compressed` write it.

Member headers are parsed without pickle; object arrays are refused. Big-endian and Fortran-ordered arrays are converted
while they are written. It runs in a child: what a zip file says of its members' sizes is not to be believed by a
process that must live. An archive of `savez` whose arrays are little endian and row-major is served in place as well,
without numpy; a checksum of the archive is checked by a conversion only.
"""

from __future__ import annotations

import contextlib
import lzma
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trims.core.errors import ArtifactError, NotInPlaceError
from trims.core.layout import element_count
from trims.formats.base import check_options
from trims.formats.numpy.header import DTYPES, read_array
from trims.formats.one_file import OneFile
from trims.formats.zip_members import stored_members
from trims.image.descriptors import explain_descriptors, lacks_descriptors
from trims.image.plan import Contents, ImagePlan, SourceTensor, plan_image
from trims.image.source import FileSpan, SourceFile, open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import IO

    import numpy as np
    from numpy.typing import NDArray

    from trims.formats.base import Artifact

_ZIP_MAGIC = b"PK\x03\x04"
_SUFFIX = ".npy"
_LOCAL_HEADER = struct.Struct("<26xHH")
_CHUNK_BYTES = 8 << 20
#: Highest ratio of unpacked to packed bytes that is believed: deflate's best is about 1:1032.
_MAX_RATIO = 1100
_MAX_HEADER_BYTES = 1 << 20


class OneNumpyFile(OneFile):
    """Base of the converters of numpy's own files."""

    def needs_child(self, options: Mapping[str, Any]) -> bool:
        """Return True: a hostile zip file may eat time and memory, and numpy is not imported where others wait."""
        del options
        return True


class NpzConverter(OneNumpyFile):
    """See the module."""

    format: ClassVar[str] = "npz"
    version: ClassVar[int] = 1
    host_specific: ClassVar[bool] = False

    def claims(self, main: Path, first_bytes: bytes) -> bool:
        """Return whether this is a zip file whose first member is an array, or whose suffix says npz."""
        if not first_bytes.startswith(_ZIP_MAGIC) or len(first_bytes) < _LOCAL_HEADER.size:
            return False
        name_bytes, _ = _LOCAL_HEADER.unpack_from(first_bytes)
        name = first_bytes[_LOCAL_HEADER.size : _LOCAL_HEADER.size + name_bytes]
        return name.endswith(_SUFFIX.encode()) or main.suffix == ".npz"

    def plan(self, artifact: Artifact) -> ImagePlan:
        """Read the headers of all members."""
        main = artifact.files[0]
        check_options(main, artifact.options, ())
        file = SourceFile.look(main)
        with _archive(main) as archive:
            sources = [_describe(archive, info, main) for info in archive.infolist()]
        return plan_image(sources, files=(file,))

    def contents(self, artifact: Artifact) -> Contents:
        """Return the contents that the archive's directory and all members' headers describe, read without numpy."""
        check_options(artifact.files[0], artifact.options, ())
        file = SourceFile.look(artifact.files[0])
        with open_source(file.path) as fd:
            members = stored_members(fd, file.nbytes)
            sources = [_stored(fd, name, *member, file) for name, member in members.items()]
            file.check(fd)
        return Contents(sources)


def _stored(fd: int, name: str, offset: int, nbytes: int, file: SourceFile) -> SourceTensor:
    """Return the array of a member that is stored, not compressed. Raises NotInPlaceError for any other."""
    if not name.endswith(_SUFFIX):
        raise NotInPlaceError(f"member {name!r} is no array")
    try:
        found = read_array(fd, offset, offset + nbytes)
    except NotInPlaceError as error:
        raise NotInPlaceError(f"member {name!r}: {error}") from error
    return SourceTensor(name.removesuffix(_SUFFIX), found.dtype, found.shape, span=FileSpan(file, found.offset))


@contextlib.contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open the archive for the block; whatever is wrong with it becomes an ArtifactError that names it."""
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
    if not info.filename.endswith(_SUFFIX):
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
    return SourceTensor(info.filename.removesuffix(_SUFFIX), kind, shape, fill=member.fill)


def kind_of(dtype: np.dtype[Any], where: str) -> str:
    """Return our name of an array's dtype. Raises ArtifactError with the way out."""
    kind = DTYPES.get(f"{dtype.kind}{dtype.itemsize}")
    if kind is None:
        remedy = "; save it as complex64" if dtype.kind == "c" else "; save it as another one"
        raise ArtifactError(f"{where} has the dtype {dtype}, which images do not know{remedy}")
    return kind


def read_header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether it is column-major, and dtype, as an array's header says. Read the stream up to there.

    Raises ArtifactError; ValueError if numpy cannot read it.
    """
    from numpy.lib import format as npy

    readers: dict[tuple[int, int], Callable[..., Any]] = {(1, 0): npy.read_array_header_1_0}
    readers[2, 0] = npy.read_array_header_2_0
    version = npy.read_magic(stream)
    if version not in readers:
        raise ArtifactError(f"{where} is of npy version {version}, which is not read")
    try:
        shape, fortran, dtype = readers[version](stream)
    except ValueError as error:
        if "<ast." not in str(error):
            raise
        raise ValueError("its header has code in it, not the literals that numpy writes") from error
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise ArtifactError(f"{where} holds objects or records, not numbers")
    if any(type(extent) is not int or extent < 0 for extent in shape):
        raise ArtifactError(f"{where} has the impossible shape {shape}")
    return shape, fortran, dtype
