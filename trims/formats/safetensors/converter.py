"""safetensors artifacts: one file, shards behind an index, and images that trims wrote. No framework.

Headers are checked by `trims.image.header`, bytes are read straight from the files into their place. With the option
`module` the image also gets a torch skeleton (see `trims.formats.torch.converter`), and only then torch is needed. A
child is needed for that, and for headers and indexes too large to parse where others wait.

Options:
    module, module_args, ignore: as for format `torch`.
    allow_pickle: keep a `torch-skeleton` program found in an image. Without it the weights are taken, the
        program, which runs code when it is unpickled, is left out and a warning logged.
"""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from trims.core.errors import ArtifactError, ImageError
from trims.formats.base import check_options
from trims.formats.shards import check_shards, is_index, names_of, refuse_shard, shard_files, weight_map
from trims.formats.torch.state import builder_of
from trims.image.check import check_image
from trims.image.header import SafetensorsHeader, parse_header
from trims.image.index import HEADER as INDEX_HEADER
from trims.image.index import LENGTH, MAGIC, MAX_HEADER_BYTES, header_length
from trims.image.peek import described_bytes, without_weights
from trims.image.plan import Contents, SourceTensor
from trims.image.program import EXECUTABLE_KINDS
from trims.image.reader import ImageView, is_image
from trims.image.source import FileSpan, SourceFile, open_source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trims.formats.base import Artifact
    from trims.image.plan import ImagePlan

#: Bytes of a file that are read at once: most headers are shorter.
_FIRST_BYTES = 64 << 10
_OPTIONS = ("module", "module_args", "ignore", "allow_pickle")
_log = logging.getLogger(__name__)


class SafetensorsConverter:
    """See the module."""

    format: ClassVar[str] = "safetensors"
    version: ClassVar[int] = 1
    host_specific: ClassVar[bool] = False
    suffixes: ClassVar[tuple[str, ...]] = (".safetensors",)

    def needs_child(self, options: Mapping[str, Any]) -> bool:
        """Return whether a skeleton is wanted: only that needs a child."""
        return "module" in options

    def may_be_in_place(self, options: Mapping[str, Any]) -> bool:
        """Return True: a session can build the module that has no skeleton yet."""
        del options
        return True

    def frameworks(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return torch and transformers if a skeleton is wanted, else nothing."""
        return ("torch", "transformers") if "module" in options else ()

    def claims(self, main: Path, first_bytes: bytes) -> bool:
        """Return whether the file begins with a plausible length and a brace, or has the name of a shard index."""
        if _is_index(main):
            return True
        plausible = len(first_bytes) > LENGTH.size and LENGTH.unpack_from(first_bytes)[0] <= MAX_HEADER_BYTES
        return plausible and first_bytes[LENGTH.size : LENGTH.size + 1] == b"{"

    def files(self, main: Path, options: Mapping[str, Any]) -> tuple[Path, ...]:
        """Return the file, or the index and its shards."""
        check_options(main, options, _OPTIONS)
        if _is_index(main):
            return shard_files(type(self), main, options)
        SourceFile.look(main)
        refuse_shard(main)
        return (main,)

    def names_here(self, main: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the shards of an index, parsed in this process whatever its size."""
        del options
        return names_of(main)

    def described_bytes(self, artifact: Artifact) -> int:
        """Return the bytes of the shard index and of all headers; for an image also its index and program."""
        main, *shards = artifact.files
        if not _is_index(main):
            return _described_bytes(main)
        return SourceFile.look(main).nbytes + sum(map(_described_bytes, shards))

    def least_bytes(self, artifact: Artifact) -> int:
        """Return the lengths of all data blocks together, which tensors fill without a gap; 0 for an image of trims."""
        main, *shards = artifact.files
        return sum(map(_data_bytes, shards if _is_index(main) else [main]))

    def plan(self, artifact: Artifact) -> ImagePlan:
        """Check all headers and lay the image out."""
        contents = self.contents(artifact)
        if "module" in artifact.options:
            from trims.formats.torch.mapped import mapped
            from trims.formats.torch.skeleton import add_skeleton

            given = functools.partial(mapped, contents.sources)
            fresh = functools.partial(mapped, contents.sources, writable=True)
            contents = Contents(*add_skeleton(contents.sources, artifact, given, fresh), contents.metadata)
        return contents.plan()

    def contents(self, artifact: Artifact) -> Contents:
        """Return the contents that the headers of all files describe."""
        main, options = artifact.files[0], artifact.options
        check_options(main, options, _OPTIONS)
        sharded = _is_index(main)
        found = _read_shards(main) if sharded else _read_file(main, bool(options.get("allow_pickle", False)))
        builder = builder_of(artifact)
        return found if builder is None else replace(found, program=builder)


def _is_index(main: Path) -> bool:
    return is_index(main, ".safetensors")


def _described_bytes(path: Path) -> int:
    with open_source(path) as fd:
        return described_bytes(fd, os.fstat(fd).st_size, str(path))


def _data_bytes(path: Path) -> int:
    """Return the length of a file's data block. An image has an index and a program there, which say nothing here."""
    with open_source(path) as fd:
        nbytes = os.fstat(fd).st_size
        start = LENGTH.size + header_length(os.pread(fd, LENGTH.size, 0), nbytes, str(path))
        return 0 if os.pread(fd, len(MAGIC), start) == MAGIC else nbytes - start


def read_header(path: Path) -> tuple[SourceFile, SafetensorsHeader, bytes]:
    """Return the file, its checked header, and its first bytes: the header and a few more. Raises ArtifactError."""
    with open_source(path) as fd:
        file = SourceFile.of(path, fd)
        head = os.pread(fd, _FIRST_BYTES, 0)
        end = LENGTH.size + header_length(head[: LENGTH.size], file.nbytes, str(path))
        if len(head) < end + INDEX_HEADER.size:
            head += os.pread(fd, end + INDEX_HEADER.size - len(head), len(head))
    return file, parse_header(memoryview(head)[LENGTH.size : end], file.nbytes, str(path)), head


def _read_file(path: Path, allow_pickle: bool) -> Contents:
    file, header, head = read_header(path)
    if is_image(head):
        return _read_image(file, allow_pickle)
    return Contents(_sources(file, header), metadata=dict(header.metadata))


def _sources(file: SourceFile, header: SafetensorsHeader) -> list[SourceTensor]:
    return [
        SourceTensor(name, dtype, shape, None, None, FileSpan(file, header.data_start + offset))
        for name, dtype, shape, offset in header.layout
    ]


def _read_image(file: SourceFile, allow_pickle: bool) -> Contents:
    """Return the tensors of an image and its program. Laying them out again gives the same bytes again."""
    try:
        with open_source(file.path) as fd:
            view = ImageView(memoryview(without_weights(fd, file.nbytes)))
        check_image(view)
        program, metadata, sources = view.program(), dict(view.metadata), _image_sources(file, view)
    except ImageError as error:
        raise ArtifactError(f"{file.path}: {error}") from error
    if program is not None and program.kind in EXECUTABLE_KINDS and not allow_pickle:
        _log.warning("%s: its %s was left out: it runs code; allow_pickle: true keeps it", file.path, program.kind)
        program = None
    return Contents(sources, program, metadata)


def _image_sources(file: SourceFile, view: ImageView) -> list[SourceTensor]:
    owned = view.header.layout.tensors
    owners = {spec.offset: spec.name for spec in view.layout if spec.name in owned and spec.nbytes}
    return [
        SourceTensor(spec.name, spec.dtype, spec.shape, span=FileSpan(file, view.data_start + spec.offset))
        if spec.name in owned
        else SourceTensor(spec.name, spec.dtype, spec.shape, tied_to=owners[spec.offset])
        for spec in view.layout
    ]


def _read_shards(main: Path) -> Contents:
    expected = weight_map(main)
    names: list[tuple[str, list[str]]] = []
    sources: list[SourceTensor] = []
    metadata: dict[str, str] = {}
    for shard in sorted(set(expected.values())):
        file, header, _ = read_header(main.parent / shard)
        names.append((shard, list(header.layout.tensors)))
        sources += _sources(file, header)
        metadata = {**header.metadata, **metadata}
    check_shards(main, expected, names)
    return Contents(sources, metadata=metadata)
