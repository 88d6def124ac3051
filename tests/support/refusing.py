"""A program that runs another one in a sandbox that refuses system calls: `refusing.py ERROR CALL... -- COMMAND...`.

Not a test itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

#: Number of each call on x86-64 and on arm64.
NUMBERS = {
    "pidfd_open": (434, 434), "memfd_create": (319, 279), "fallocate": (285, 47), "prctl": (157, 167),
    "flock": (73, 32), "clone3": (435, 435),
}  # fmt: skip
_LOAD, _EQUALS, _RETURN, _ALLOW, _FAIL = 0x20, 0x15, 0x06, 0x7FFF_0000, 0x0005_0000
_NO_NEW_PRIVILEGES, _SET_FILTER, _FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def refuse(number: int, calls: list[str]) -> None:
    """Have calls fail with an error number from now on, also in programs that this one becomes."""
    column = 1 if platform.machine() == "aarch64" else 0
    steps = [struct.pack("<HBBI", _LOAD, 0, 0, 0)]
    for call in calls:
        steps.append(struct.pack("<HBBI", _EQUALS, 0, 1, NUMBERS[call][column]))
        steps.append(struct.pack("<HBBI", _RETURN, 0, 0, _FAIL | number))
    steps.append(struct.pack("<HBBI", _RETURN, 0, 0, _ALLOW))
    libc, program = ctypes.CDLL(None, use_errno=True), _Program(len(steps), b"".join(steps))
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_FILTER, _FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    end = sys.argv.index("--")
    refuse(getattr(errno, sys.argv[1]), sys.argv[2:end])
    command = sys.argv[end + 1 :]
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
