"""Files in shared memory, exactly as they are now: their bytes, copy-on-write, or what a format makes of them."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from typing import NamedTuple

from trims_client.transparent.outcomes import StepAsideError, note_begin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trims_client.weights import Weights

#: Bytes of files that are read as quickly by the original, or nearly; until the daemon says what was measured here.
LEAST_BYTES = 1 << 20
_measured = [0]
#: Seconds that the store is asked for. A file that is not in shared memory is loaded by the original.
_PATIENCE_S = 0.001
#: Seconds that a daemon may take longer than that. One that takes even longer is not asked again for _SILENCE_S.
_GRACE_S, _SILENCE_S = 0.05, 10.0
#: Time (monotonic) until which the daemon is not asked.
_silent = [0.0]
#: Seconds after a write in which a file may be written again at the same times.
_REST_S = 2.0
#: Name of files at their identities: see `trims.store.file_names`, which the client does not import.
_NAME = "file:{}:{}:{}"
_TENSOR = "bytes"


class WantedFile(NamedTuple):
    """A file that a load function reads, and those that lie beside it.

    Attributes:
        path: The file's path, absolute.
        nbytes: Bytes of all of them.
        identity: Changes whenever one is written, replaced or touched; of a single file the result of `identity_of`.
    """

    path: str
    nbytes: int
    identity: str


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


def check_same(path: str, identity: str) -> None:
    """Raise StepAsideError if a file, which was read beside what the store has of it, is not that file any more."""
    try:
        same = identity_of(path) == identity
    except OSError:
        same = False
    if not same:
        raise StepAsideError("changed meanwhile")


def _identity(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def bytes_of(file: object) -> FileBytes:
    """Return the bytes of a file from shared memory. The daemon brings it there behind this program if it is not.

    Raises StepAsideError: it is no path, too small, just written, not in shared memory yet, or the store refuses.
    """
    wanted = wanted_file(file)
    with opened(wanted, "bytes") as weights:  # the memory, and with it the lease, stays for as long as a view lives
        spec = weights.layout.tensors[_TENSOR]
        data = weights.data(private=True)[spec.offset : spec.offset + spec.nbytes]
    if data.nbytes != wanted.nbytes:
        raise StepAsideError("not the file's bytes")
    return FileBytes(data, wanted.path, wanted.identity)


def wanted_file(file: object, beside: Sequence[str] = ()) -> WantedFile:
    """Return what to ask the store for. Raises StepAsideError for what it cannot have, or where it would not pay.

    Args:
        file: What a load function was given.
        beside: Endings which, behind its name, may be names of further files of the same model.
    """
    note_begin()
    if not isinstance(file, (str, bytes, os.PathLike)):
        raise StepAsideError("not a path")
    try:
        path = os.fsdecode(file)
        # `abspath` takes `link/..` for the link's own folder, where the kernel goes to that of its target.
        path = os.path.realpath(path) if os.pardir in path else os.path.abspath(path)
        found = [os.stat(path)]
    except (OSError, ValueError) as error:
        raise StepAsideError("no such file") from error
    for ending in beside:
        with contextlib.suppress(OSError):
            found.append(os.stat(path + ending))
    if not all(stat.S_ISREG(each.st_mode) for each in found):
        raise StepAsideError("not a file")
    if (nbytes := sum(each.st_size for each in found)) < (_measured[0] or LEAST_BYTES):
        raise StepAsideError("too small to pay")
    if any(abs(time.time() - max(each.st_mtime, each.st_ctime)) < _REST_S for each in found):
        raise StepAsideError("just written")
    return WantedFile(path, nbytes, "|".join(map(_identity, found)))


@contextlib.contextmanager
def opened(wanted: WantedFile, form: str) -> Iterator[Weights]:
    """Yield a file's weights in shared memory. The daemon brings them there behind this program if they are not.

    Args:
        wanted: Result of `wanted_file`.
        form: Format and options; see `trims.store.file_names`.

    Raises StepAsideError: not in shared memory yet, or the store refuses.
    """
    # Imported at the first load, as programs that import a framework may load nothing.
    from trims.core.errors import DeadlineError, TrimsError
    from trims_client.shared import shared_session

    name = _NAME.format(form, wanted.identity, wanted.path)
    if (began_s := time.monotonic()) < _silent[0]:
        raise StepAsideError("the daemon did not answer")
    try:
        session = shared_session(agent=_agent())
        try:
            weights = session.open_soon(name, "cpu", deadline_s=_PATIENCE_S, grace_s=_GRACE_S)
        finally:
            _learn(session.share_from)
    except (TrimsError, OSError) as error:
        if time.monotonic() - began_s > _PATIENCE_S + _GRACE_S:
            _silent[0] = time.monotonic() + _SILENCE_S
            raise StepAsideError("the daemon did not answer") from error
        if isinstance(error, DeadlineError):
            raise StepAsideError("not in shared memory yet", lambda: _prefetch(name)) from error
        raise _aside(error) from error
    try:
        with weights:
            yield weights
    except (TrimsError, OSError) as error:
        raise _aside(error) from error


def _aside(error: Exception) -> StepAsideError:
    return StepAsideError(getattr(error, "code", type(error).__name__))


def _learn(share_from: int) -> None:
    """Take over from which size on sharing pays, within its bounds, once the daemon has said so."""
    from trims.core.sharing import bounded

    if share_from:
        _measured[0] = bounded(share_from)


def _agent() -> str:
    """Return what `trims ps` shows of this program."""
    path = sys.argv[0] if sys.argv else ""
    name = os.path.basename(os.path.dirname(path) if os.path.basename(path) == "__main__.py" else path) or "python"
    return f"loaders of {name}".encode("utf-8", "backslashreplace").decode()


def _prefetch(name: str) -> None:
    from trims.core.errors import TrimsError
    from trims_client.shared import shared_session

    with contextlib.suppress(TrimsError, OSError):  # the program has what it asked for
        shared_session().prefetch(name, place="cpu")
