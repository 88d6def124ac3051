"""Landlock: a process gives up writing to files, for good and for all that it starts. No privilege is needed.

A mount that is read-only does not bind descriptors that come from another process. A file that the daemon has opened
for a predictor can be opened once more by `/proc/self/fd/N`, for writing if its permissions allow that. Landlock (Linux
5.13) asks at every open, whichever way it takes. Each call of `restrict` also makes a border between processes: one
behind it can neither trace nor read the memory of one before it, and from Linux 6.12 on not send it signals either.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Numbers of the system calls, on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
#: Rights by the version of Landlock that has brought them: writing, removing and making entries of all kinds; moving
#: between folders; truncating.
_WRITE_FILE = 1 << 1
_RIGHTS = {1: _WRITE_FILE | sum(1 << bit for bit in range(4, 13)), 2: 1 << 13, 3: 1 << 14}
#: The version that keeps signals and abstract sockets within the border, and the flags for that.
_SCOPES_SINCE, _SCOPES = 6, 0b11


def version() -> int:
    """Return the version of this kernel's Landlock; 0 without it."""
    found = _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(0, int(found))


def restrict(writable: Sequence[str]) -> None:
    """Have this thread, and what it starts, write to nothing but what lies beneath these folders.

    Call it before any other thread is started: those go on as they are. It may be called again, and only narrows.

    Args:
        writable: Folders. One that is not there is passed over.

    Raises:
        NotSupportedError: The kernel has no Landlock, or refuses.
    """
    has = version()
    rights = sum(each for since, each in _RIGHTS.items() if since <= has)
    attributes = struct.pack("<QQQ", rights, 0, _SCOPES if has >= _SCOPES_SINCE else 0)
    attributes = attributes[: 24 if has >= _SCOPES_SINCE else 16 if has >= 4 else 8]
    rules = _checked(_call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)))
    try:
        for folder in writable:
            _allow(rules, folder, rights)
        _checked(ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _checked(_call(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0)))
    finally:
        os.close(rules)


def _allow(rules: int, folder: str, rights: int) -> None:
    try:
        fd = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        beneath = struct.pack("<Qi", rights, fd)
        _checked(_call(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_BENEATH), beneath, ctypes.c_uint32(0)))
    finally:
        os.close(fd)


def _call(number: int, *arguments: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments))


def _checked(found: int) -> int:
    if found < 0:
        why = os.strerror(ctypes.get_errno())
        raise NotSupportedError(f"this kernel's Landlock does not take files from a process: {why}")
    return found
