"""Files that are not of the format they were taken for: a pointer of Git LFS, a page of a website, another format.

Such files come from downloads that went wrong, and whatever their format's reader says of them (a header of 10^18
bytes, no zip directory) leads astray. So when one fails, its first bytes are looked at here. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from trims.core.errors import TrimsError
from trims.image.source import open_source

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: Bytes read from the start of a file: enough for every magic number, and for a page that begins with a comment.
FIRST_BYTES = 4096
#: Files of one artifact that are looked at, at most: its shards are pointers all or not at all.
_MOST_FILES = 64
_PAGE = re.compile(rb"\s*(<!--.*?-->\s*)*<(!doctype\s+html|html|head|body|\?xml|error)\b", re.IGNORECASE | re.DOTALL)
_FAILED = re.compile(rb'\s*\{\s*"(error|message|detail|errors)"')
_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_SIZE = re.compile(rb"^size ([0-9]{1,18})$", re.MULTILINE)
#: Formats that no artifact is made of, by their first bytes.
_MAGIC = {
    b"GGUF": "a GGUF file, whose quantised blocks are no tensors that a framework here reads: take the model's "
    "safetensors, or dequantise it with the tools of llama.cpp",
    b"\x89HDF\r\n": "an HDF5 file, as Keras writes them: save the weights as safetensors or .npz",
    b"\x1f\x8b": "compressed by gzip: unpack it first",
    b"BZh": "compressed by bzip2: unpack it first",
    b"\xfd7zXZ\0": "compressed by xz: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: unpack it first",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it first",
    b"Rar!\x1a\x07": "a RAR archive: unpack it first",
}
#: Pickles, and zip archives, of which some are artifacts.
_PICKLE = b"\x80"
#: First bytes of the legacy format of `torch.save`, which is a pickle as well.
_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_ZIP = b"PK\x03\x04"


def describe_failed_download(first_bytes: bytes) -> str | None:
    """Return what a file is that holds no weights at all, and the remedy; None if its first bytes do not say so."""
    if first_bytes.startswith(_LFS):
        size = _LFS_SIZE.search(first_bytes)
        of = f" to a file of {int(size[1])} bytes" if size else ""
        return f"a pointer of Git LFS{of}, not the file itself: fetch it (git lfs pull)"
    if _PAGE.match(first_bytes):
        return "an HTML or XML page, not weights: a download got a login or error page; download it again"
    if _FAILED.match(first_bytes):
        return "a server's error message, not weights: download it again"
    return None


def describe_foreign(first_bytes: bytes) -> str | None:
    """Return what a file is that no converter reads, and the remedy; None if its first bytes do not say so."""
    found = describe_failed_download(first_bytes)
    if found is None and first_bytes[257:262] == b"ustar":
        found = "a tar archive: unpack it first"
    if found is None and first_bytes.startswith(_PICKLE) and not first_bytes.startswith(_TORCH):
        found = (
            "a pickle that torch.save did not write: save its arrays as safetensors or .npz, or its tensors with "
            "torch.save"
        )
    return found or next((text for magic, text in _MAGIC.items() if first_bytes.startswith(magic)), None)


def describe_archive(first_bytes: bytes) -> str | None:
    """Return what a zip archive is that was taken for something else; None if it is none."""
    if not first_bytes.startswith(_ZIP):
        return None
    return (
        "a zip archive, as torch.save and numpy.savez write them: write its format (torch, npz) in the manifest, or "
        "unpack it"
    )


def first_bytes_of(path: Path) -> bytes:
    """Return how a file begins; empty if it cannot be read."""
    with contextlib.suppress(TrimsError, OSError), open_source(path) as fd:
        return os.pread(fd, FIRST_BYTES, 0)
    return b""


def find_failed_download(files: Iterable[Path]) -> tuple[Path, str] | None:
    """Return the first file that holds no weights at all, with what it is; None if there is none."""
    for path, _ in zip(files, range(_MOST_FILES), strict=False):
        found = describe_failed_download(first_bytes_of(path))
        if found is not None:
            return path, found
    return None
