"""A filter of system calls for predictors: what no model needs, and what attacks on a kernel begin with, fails.

The filter is a program for the kernel (classic BPF, `man 2 seccomp`), with one comparison for each call. A refused call
fails with EPERM. `clone3`, whose flags a filter cannot see, fails with ENOSYS, so that the C library takes `clone`.
Calls that change the mode or the times of a path succeed and do nothing: copies of files (`shutil.copy`) end with them.
"""

from __future__ import annotations

import errno
import platform
import struct

#: Number of each refused call, on x86-64 and on arm64; -1 where there is none.
REFUSED: dict[str, tuple[int, int]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "unshare": (272, 97), "setns": (308, 268),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "lookup_dcookie": (212, 18),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "acct": (163, 89), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58),
    "iopl": (172, -1), "ioperm": (173, -1),
    # Permissions, owners, times and attributes: also of a file that another process has opened for this one.
    "fchmod": (91, 52), "chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
}  # fmt: skip
#: The same for calls that do nothing. A path may lead to a file that another process has opened for this one.
IGNORED: dict[str, tuple[int, int]] = {
    "chmod": (90, -1), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88),
}  # fmt: skip
_CLONE, _CLONE3 = (56, 220), (435, 435)
#: Flags of `clone` that make namespaces.
_NEW_NAMESPACES = 0x7E02_0000
#: By machine: column of the numbers, and what the kernel calls the architecture (AUDIT_ARCH).
_MACHINES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
#: Calls of the x32 interface have the numbers of others with this bit.
_X32 = 0x4000_0000
_LOAD, _EQUALS, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000
#: Offsets in `struct seccomp_data`.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16


def filter_program(machine: str | None = None) -> bytes | None:
    """The filter for a machine, as `seccomp(2)` and bubblewrap take it; None for a machine without a table.

    Args:
        machine: As `platform.machine` calls it; None for this one.
    """
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    column, architecture = known
    refuse = _step(_RETURN, _FAIL | errno.EPERM)
    program = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUALS, architecture, 1, 0),
        refuse,  # calls of another architecture have other numbers
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _X32, 0, 1),
        refuse,
        _step(_EQUALS, _CLONE3[column], 0, 1),
        _step(_RETURN, _FAIL | errno.ENOSYS),
    ]
    for table, outcome in ((REFUSED, refuse), (IGNORED, _step(_RETURN, _FAIL))):  # to fail with no error is to succeed
        for numbers in table.values():
            if numbers[column] >= 0:
                program += [_step(_EQUALS, numbers[column], 0, 1), outcome]
    program += [
        _step(_EQUALS, _CLONE[column], 0, 3),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_HAS_BITS, _NEW_NAMESPACES, 0, 1),
        refuse,
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One `struct sock_filter`; jumps count the steps that are left out."""
    return struct.pack("<HBBI", code, if_true, if_false, value)
