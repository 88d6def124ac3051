"""System calls that a sandbox around this process may refuse, tried before a daemon or an endpoint serves.

A filter of system calls (seccomp: of a container, a unit, an online judge) answers EPERM or ENOSYS to calls that are
newer than its list. What is refused late shows as an endpoint that never answers, or as an error number without a name.
Programs that `trims exec` starts need none of these: they are started as ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_GET_ADOPTS, _ADOPTS = 37, 36
#: Number of `clone3`, which is the same on all architectures.
_CLONE3 = 435


class SystemCall(NamedTuple):
    """One call.

    Attributes:
        trial: Makes it, without an effect; raises OSError if it is refused.
    """

    needed_for: str
    trial: Callable[[], None]


class Refused(NamedTuple):
    """A call that is refused: its name, the error number's text, and what it is needed for."""

    name: str
    error: str
    needed_for: str

    def __str__(self) -> str:
        return f"the system call {self.name} is refused ({self.error}), which is needed {self.needed_for}"


#: Remedy for refused calls.
REMEDY = (
    "have the sandbox around this process allow it: the seccomp profile of a container (Docker 20.10.10 and containerd "
    "1.5.7 allow it by default, else --security-opt seccomp=PROFILE), SystemCallFilter= of a unit"
)


@contextlib.contextmanager
def _trial_file() -> Iterator[int]:
    with tempfile.TemporaryFile(prefix="trims-trial-") as file:
        yield file.fileno()


def _try_pidfd() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _try_memfd() -> None:
    os.close(os.memfd_create("trims-trial", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))


def _try_fallocate() -> None:
    with _trial_file() as fd:
        os.posix_fallocate(fd, 0, 1)


def _try_flock() -> None:
    with _trial_file() as fd:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _try_prctl() -> None:
    libc, adopts = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
    if libc.prctl(_GET_ADOPTS, ctypes.byref(adopts), 0, 0, 0) or libc.prctl(_ADOPTS, adopts.value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _try_clone3() -> None:
    """Make the call with no arguments, which a kernel calls invalid; with ENOSYS the C library takes `clone`."""
    if ctypes.CDLL(None, use_errno=True).syscall(_CLONE3, None, 0):
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(number, os.strerror(number))


CALLS: dict[str, SystemCall] = {
    "pidfd_open": SystemCall("to notice the end of processes", _try_pidfd),
    "memfd_create": SystemCall("to pass memory to other processes", _try_memfd),
    "fallocate": SystemCall("to reserve memory and disk before it is written", _try_fallocate),
    "flock": SystemCall("to keep two daemons from one folder", _try_flock),
    "prctl": SystemCall("to end what predictors leave behind", _try_prctl),
    "clone3": SystemCall("to start threads (with ENOSYS the C library does without)", _try_clone3),
}
#: Calls that a daemon needs; an endpoint needs all.
OF_DAEMON = frozenset(CALLS) - {"prctl"}


def refused_calls(names: Collection[str] = tuple(CALLS)) -> list[Refused]:
    """Try calls, and return those that are refused. Raises OSError if there is no folder for a trial file."""
    found = []
    for name in names:
        try:
            CALLS[name].trial()
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EACCES):
                continue  # it was made, and there is no room or descriptor
            found.append(Refused(name, f"{errno.errorcode[error.errno]}: {error.strerror}", CALLS[name].needed_for))
    return found


def require(names: Collection[str] = tuple(CALLS)) -> None:
    """Raise NotSupportedError, with the remedy, if calls are refused."""
    refused = refused_calls(names)
    if refused:
        raise NotSupportedError(f"{'; '.join(map(str, refused))}: {REMEDY}")
