"""A folder that one daemon holds: its lock, and what keeps programs that remove old files away from it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)
#: Seconds that a daemon which was killed may still hold its folders: a child that it was just starting has its
#: descriptors until it runs its own program.
_BURIAL_S = 5.0
#: Seconds to wait for another daemon that is ending: requests that run may finish, and memory is given back.
_OTHERS_END_S = 120.0
_IS_ENDING = "ending"


class FolderLock:
    """Holds a folder for one daemon. Raises ConfigError naming the holder if another one has it.

    The lock of the file `lock` keeps other daemons away. A shared lock of the folder itself has systemd-tmpfiles leave
    alone all that lies in it, however old it is.
    """

    def __init__(self, folder: Path, what: str) -> None:
        self.folder = folder
        self._folder_fd = -1
        self._fd = self._open(what)
        until_s, ends = time.monotonic() + _BURIAL_S, False
        while not _locked(self._fd, fcntl.LOCK_EX):
            holder, _, note = os.pread(self._fd, 32, 0).decode(errors="replace").strip().partition(" ")
            holder = holder or "unknown"
            if note == _IS_ENDING and not ends:
                log.info("waiting for the daemon with process id %s, which is ending", holder)
                ends, until_s = True, time.monotonic() + _OTHERS_END_S
            if (_lives(holder) and not ends) or time.monotonic() > until_s:
                os.close(self._fd)
                raise ConfigError(
                    f"{what} {folder} is in use by the daemon with process id {holder}; end it with `trims shutdown`, "
                    f"or choose another folder"
                )
            time.sleep(0.01)
        self._write(str(os.getpid()))
        self._hold_folder()

    def _open(self, what: str) -> int:
        """Open the file `lock`; make the folder if it is not there. Raises ConfigError if it is another user's."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = self.folder.stat()
        if status.st_uid != os.geteuid():
            raise ConfigError(f"{what} {self.folder} belongs to user {status.st_uid}, not to you; choose another")
        return os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _hold_folder(self) -> None:
        """Lock the folder itself. A program that has it locked just now is cleaning there: `renew` tries again."""
        before, self._folder_fd = self._folder_fd, os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _locked(self._folder_fd, fcntl.LOCK_SH)
        if before >= 0:
            os.close(before)

    def renew(self) -> bool:
        """Have the folder count as new, and take it again if it was removed. Return whether it is still this daemon's.

        Some programs that remove old files know no locks.
        """
        if not _is_at(self._fd, self.folder / "lock"):
            fd = self._open("the folder")
            if not _locked(fd, fcntl.LOCK_EX):
                os.close(fd)
                return False
            os.close(self._fd)
            self._fd = fd
            self._write(str(os.getpid()))
        self._hold_folder()
        with contextlib.suppress(OSError), os.scandir(self.folder) as found:
            os.utime(self.folder)
            for entry in found:
                if entry.is_file(follow_symlinks=False):
                    os.utime(entry.path)
        return True

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # on a full disk the lock holds without saying who has it
            os.ftruncate(self._fd, os.pwrite(self._fd, f"{text}\n".encode(), 0))

    def announce_end(self) -> None:
        """Have a daemon that wants the folder wait for its release, instead of being refused."""
        self._write(f"{os.getpid()} {_IS_ENDING}")

    def release(self) -> None:
        """Let the next daemon in."""
        for fd in (self._fd, self._folder_fd):
            os.close(fd)


def _locked(fd: int, kind: int) -> bool:
    """Lock an open file or folder, and return whether that could be done at once."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(fd: int, path: Path) -> bool:
    """Return whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def _lives(holder: str) -> bool:
    """Return whether a process has this id; True also if that is unknown."""
    try:
        os.kill(int(holder), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OverflowError, PermissionError):
        return True
    return True
