"""Folders for what converter children leave lying about, which do not outlive their process for long.

A folder is held by a lock on itself for as long as the process lives that made it: the kernel lets go of it however
that process ends. So a folder of this user that no process holds is rubbish, and the next daemon removes
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
from trims.image.descriptors import explain_descriptors, lacks_descriptors

log = logging.getLogger(__name__)
_TRIES = 10


class Scratch:
    """A new, empty folder in the temporary folder, of this user alone. `remove` it.

    Raises ConversionError where nothing can be locked, with the remedy: unheld, it could be swept under its child.
    Raises CapacityError where this process has no descriptor left to hold it by.
    """

    def __init__(self) -> None:
        for _ in range(_TRIES):
            self.path = tempfile.mkdtemp(prefix=_prefix())
            self._fd = self._hold_or_remove()
            if self._fd >= 0:
                return
            # Another daemon swept between the two calls, and has removed it or is about to.
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
        raise ConversionError(
            f"no folder in {tempfile.gettempdir()} can be locked; point TMPDIR at one where flock works"
        )

    def _hold_or_remove(self) -> int:
        try:
            return _hold(self.path)
        except OSError as error:  # no descriptor is left: a sweep would find the folder, but there may be none
            os.rmdir(self.path)
            raise explain_descriptors(error) from error

    def remove(self) -> None:
        """Remove the folder with all that is in it, as far as possible. Idempotent."""
        if self._fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._fd)
            self._fd = -1
            if os.path.lexists(self.path):  # listing it takes a descriptor, and that was the last one
                shutil.rmtree(self.path, ignore_errors=True)


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
    try:
        fd = _hold(path)
    except OSError as error:
        log.warning("%s is not looked at: %s", path, error)
        return False
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
    """Lock a folder of this user; a descriptor that holds it, or -1 if it is another's, held, gone or no folder.

    Raises OSError only if no descriptor is left.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if lacks_descriptors(error):
            raise
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_uid == os.geteuid() and os.path.samestat(os.fstat(fd), os.lstat(path)):
            return fd
    except OSError:  # held; or removed between opening and locking
        pass
    os.close(fd)
    return -1
