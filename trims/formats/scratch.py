"""Folders for what converter children leave lying about, which outlive nobody for long.

A folder is held by a lock on itself for as long as the process lives that made it: the kernel lets go of it however
that process ends. So a folder of this user that nobody holds is rubbish, whoever made it, and the next daemon removes
it. Links are never followed, and what belongs to another user is not looked into.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile

from trims.core.errors import ConversionError

log = logging.getLogger(__name__)
_TRIES = 10


class Scratch:
    """A new, empty folder in the temporary folder, of this user alone. `remove` it.

    Raises ConversionError where nothing can be locked, with the remedy: unheld, it could be swept under its child.
    """

    def __init__(self) -> None:
        for _ in range(_TRIES):
            self.path = tempfile.mkdtemp(prefix=_prefix())
            self._fd = _hold(self.path)
            if self._fd >= 0:
                return
            # Somebody swept between the two calls, and has removed it or is about to.
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
        raise ConversionError(
            f"no folder in {tempfile.gettempdir()} can be locked; point TMPDIR at one where flock works"
        )

    def remove(self) -> None:
        """Remove the folder with all that is in it, as far as possible. Idempotent."""
        if self._fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._fd)
            self._fd = -1


def sweep_scratch() -> int:
    """Remove this user's folders that no process holds any more. Returns how many are gone."""
    folder = tempfile.gettempdir()
    try:
        found = [name for name in sorted(os.listdir(folder)) if name.startswith(_prefix())]
    except OSError as error:  # a temporary folder that may be written and not listed
        log.info("nothing is swept: %s", error)
        return 0
    return sum(_sweep(f"{folder}/{name}") for name in found)


def _prefix() -> str:
    return f"trims-child-{os.geteuid()}-"


def _sweep(path: str) -> bool:
    fd = _hold(path)
    if fd < 0:
        return False
    try:
        shutil.rmtree(path)
    except OSError as error:
        log.warning("%s was left by a converter whose daemon died, and cannot be removed: %s", path, error)
        return False
    else:
        log.info("removed %s, left by a converter whose daemon died", path)
        return True
    finally:
        os.close(fd)


def _hold(path: str) -> int:
    """Lock a folder of this user; a descriptor that holds it, or -1 if it is another's, held, gone or no folder."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_uid == os.geteuid() and os.path.samestat(os.fstat(fd), os.lstat(path)):
            return fd
    except OSError:  # held; or removed between opening and locking
        pass
    os.close(fd)
    return -1
