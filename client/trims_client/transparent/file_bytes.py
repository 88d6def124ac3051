"""Bytes of a file from shared memory, copy-on-write, exactly as the file has them now."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import NamedTuple

from trims_client.transparent.outcomes import StepAsideError

#: Bytes of files that are read as quickly by the original, or nearly.
LEAST_BYTES = 1 << 20
#: Seconds that the store is asked for. A file that is not in shared memory is loaded by the original.
_PATIENCE_S = 0.001
#: Seconds after a write in which a file may be written again at the same times.
_REST_S = 2.0
#: Name of a file at one identity: see `trims.store.file_names`, which the client does not import.
_NAME = "file:bytes:{}:{}"
_TENSOR = "bytes"


class FileBytes(NamedTuple):
    """A file's bytes.

    Attributes:
        data: Writable and copy-on-write; no other call gets the same memory.
        path: The file's path, absolute.
        identity: Result of `identity_of` for the file.
    """

    data: memoryview
    path: str
    identity: str


def identity_of(path: str) -> str:
    """Return a text that changes whenever the file is written, replaced or touched. Raises OSError."""
    return _identity(os.stat(path))


def _identity(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def bytes_of(file: object) -> FileBytes:
    """Return the bytes of a file from shared memory. The daemon brings it there behind this program if it is not.

    Raises StepAsideError: it is no path, too small, just written, not in shared memory yet, or the store refuses.
    """
    if not isinstance(file, (str, bytes, os.PathLike)):
        raise StepAsideError("not a path")
    try:
        path = os.path.abspath(os.fsdecode(file))
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise StepAsideError("no such file") from error
    if not stat.S_ISREG(status.st_mode):
        raise StepAsideError("not a file")
    if status.st_size < LEAST_BYTES:
        raise StepAsideError("too small to pay")
    if abs(time.time() - max(status.st_mtime, status.st_ctime)) < _REST_S:
        raise StepAsideError("just written")
    identity = _identity(status)
    data = _opened(_NAME.format(identity, path))
    if data.nbytes != status.st_size:
        raise StepAsideError("not the file's bytes")
    return FileBytes(data, path, identity)


def _opened(name: str) -> memoryview:
    # Imported at the first load, as programs that import a framework may load nothing.
    from trims.core.errors import DeadlineError, TrimsError
    from trims_client.shared import shared_session

    try:
        session = shared_session()
        try:
            weights = session.open(name, place="cpu", deadline_s=_PATIENCE_S)
        except DeadlineError as error:
            raise StepAsideError("not in shared memory yet", lambda: _prefetch(name)) from error
        with weights:  # the memory, and with it the lease, stays for as long as a view of it lives
            spec = weights.layout.tensors[_TENSOR]
            return weights.data(private=True)[spec.offset : spec.offset + spec.nbytes]
    except (TrimsError, OSError) as error:
        raise StepAsideError(getattr(error, "code", type(error).__name__)) from error


def _prefetch(name: str) -> None:
    from trims.core.errors import TrimsError
    from trims_client.shared import shared_session

    with contextlib.suppress(TrimsError, OSError):  # the program has what it asked for
        shared_session().prefetch(name, place="cpu")
