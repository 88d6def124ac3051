"""Sandbox that keeps predictors apart from the machine, in one of three levels.

1. `process`: a process of its own, in a process group of its own, with the rights of the user who runs the endpoint.
2. `user:NAME`: the same with the rights of another user. Only root can start such.
3. `namespaces`: bubblewrap (`bwrap`) starts templates, without any privilege, in namespaces of their own (user, mount,
   process ids, IPC, network, host name). The file system is read-only. The daemon's files, its control socket and the
   shared memory of other models are not there. No network is reachable, and no other process is seen. System calls
   that no model needs fail (see `seccomp`). It works wherever unprivileged user namespaces are allowed.

Predictors of one environment share the namespaces of its template. They see each other, and Landlock keeps them from
reading each other's memory (`landlock`). docs/predictors.md lists what the level `namespaces` does not do.
"""

from __future__ import annotations

import errno
import os
import platform
import pwd
import shutil
import struct
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import ConfigError
from trims.process.oneshot import run
from trims.wire.address import ATTACH_FOLDER
from trims_predictors.sandbox import landlock

if TYPE_CHECKING:
    from collections.abc import Sequence


# A filter of system calls for predictors: what no model needs, and what attacks on a kernel begin with, fails.
#
# The filter is a program for the kernel (classic BPF, `man 2 seccomp`), with one comparison for each call. A refused
# call fails with EPERM. `clone3`, whose flags a filter cannot see, fails with ENOSYS, so that the C library takes
# `clone`. Calls that change the mode or the times of a path succeed and do nothing: copies of files (`shutil.copy`) end
# with them.
#
# Predictors of one environment see each other's process ids. A call that changes limits, processors, scheduling or
# memory of a process may name the caller only, as 0: a filter cannot know which other ids are its own threads and
# children. So `os.sched_setaffinity(0, ...)` works and `os.sched_setaffinity(os.getpid(), ...)` fails with EPERM. Calls
# that send signals are not filtered, because a process must end its children: Landlock keeps them from others (see
# `landlock`).

#: Number of each refused call, on x86-64 and on arm64; -1 where there is none.
REFUSED: dict[str, tuple[int, int]] = {
    "shmget": (29, 194), "shmat": (30, 196),  # memory beside the bound of a predictor
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
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
#: Calls that do nothing and report success. A path may lead to a file that another process opened for this one.
IGNORED: dict[str, tuple[int, int]] = {
    "chmod": (90, -1), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88),
}  # fmt: skip
#: Calls whose first argument is a process id, which must be 0: the caller.
CALLER_ONLY: dict[str, tuple[int, int]] = {
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "migrate_pages": (256, 238), "move_pages": (279, 239), "get_robust_list": (274, 100),
}  # fmt: skip
#: Call whose first argument must be 0, and that has new limits as third one: a process that reads limits passes none.
_PRLIMIT = (302, 261)
#: Calls with the kind of the second argument as first one, and the first kind that names a user: all its processes.
OF_KINDS: dict[str, tuple[tuple[int, int], int]] = {"setpriority": ((141, 140), 2), "ioprio_set": ((251, 30), 3)}
#: Calls that may have any first argument but this: every process, and the option PR_SCHED_CORE, which takes an id.
ALL_BUT: dict[str, tuple[tuple[int, int], int]] = {"kill": ((62, 129), 0xFFFF_FFFF), "prctl": ((157, 167), 62)}
_CLONE, _CLONE3 = (56, 220), (435, 435)
#: Flags of `clone` that make namespaces.
_NEW_NAMESPACES = 0x7E02_0000
#: Machine -> column of the numbers, and the kernel's name for the architecture (AUDIT_ARCH).
_MACHINES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
#: Calls of the x32 interface have the numbers of others with this bit.
_X32 = 0x4000_0000
_LOAD, _EQUALS, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000
#: Offsets in `struct seccomp_data`: of an argument the lower half, which is all that the kernel takes of a process id.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32
_UPPER_HALF = 4


def filter_program(machine: str | None = None) -> bytes | None:
    """The filter for a machine, as `seccomp(2)` and bubblewrap take it; None for a machine without a table.

    Args:
        machine: Name that `platform.machine` gives; None for this one.
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
    program += _of_processes(column)
    program += [
        _step(_EQUALS, _CLONE[column], 0, 3),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_HAS_BITS, _NEW_NAMESPACES, 0, 1),
        refuse,
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _of_processes(column: int) -> list[bytes]:
    """Return the steps for calls that may name another process."""
    program: list[bytes] = []
    for numbers in CALLER_ONLY.values():
        program += _call(numbers[column], _allowed_if((_FIRST_ARGUMENT, _EQUALS, 0, True)))
    for numbers, first_refused in OF_KINDS.values():
        kind = (_FIRST_ARGUMENT, _AT_LEAST, first_refused, False)
        program += _call(numbers[column], _allowed_if(kind, (_SECOND_ARGUMENT, _EQUALS, 0, True)))
    for numbers, refused in ALL_BUT.values():
        program += _call(numbers[column], _allowed_if((_FIRST_ARGUMENT, _EQUALS, refused, False)))
    upper_half = _THIRD_ARGUMENT + _UPPER_HALF
    reads = _allowed_if((_THIRD_ARGUMENT, _EQUALS, 0, True), (upper_half, _EQUALS, 0, True))
    of_caller = [_step(_LOAD, _FIRST_ARGUMENT), _step(_EQUALS, 0, len(reads) - 1, 0)]
    return program + _call(_PRLIMIT[column], of_caller + reads)


def _allowed_if(*conditions: tuple[int, int, int, bool]) -> list[bytes]:
    """Return steps that allow a call if all conditions hold, and refuse it otherwise.

    Args:
        conditions: Offset of half an argument, comparison, what it is compared with, and the result that is wanted.
    """
    program: list[bytes] = []
    for offset, comparison, value, wanted in conditions:
        program += [_step(_LOAD, offset), _step(comparison, value, int(wanted), int(not wanted))]
        program.append(_step(_RETURN, _FAIL | errno.EPERM))
    return [*program, _step(_RETURN, _ALLOW)]


def _call(number: int, steps: list[bytes]) -> list[bytes]:
    """Return steps that are carried out for one call only; each way through them returns."""
    return [_step(_EQUALS, number, 0, len(steps)), *steps]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One `struct sock_filter`; jumps count the steps that are left out."""
    return struct.pack("<HBBI", code, if_true, if_false, value)


AUTO, PROCESS, NAMESPACES, USER = "auto", "process", "namespaces", "user:"
_PROGRAM = "bwrap"
_APART = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
    "--cap-drop", "ALL", "--new-session", "--die-with-parent",
)  # fmt: skip
#: A new one, in memory: temporary files of predictors lie there.
_SCRATCH = "/dev/shm"  # noqa: S108 - inside the namespace, where it is empty
_PROBE_S = 20.0


@dataclass(frozen=True, slots=True)
class Isolation:
    """A level, and what it takes.

    Attributes:
        level: `process`, `user:NAME` or `namespaces`.
        hidden: Folders and files that are empty for predictors, at the level `namespaces`.
        why_not_more: Why `auto` chose no higher level; empty if it did.
        scratch_bytes: The most that files of all predictors of a namespace may take together, in its `/dev/shm`.
    """

    level: str = PROCESS
    hidden: tuple[str, ...] = ()
    why_not_more: str = ""
    scratch_bytes: int = 1 << 30

    @property
    def writable(self) -> str:
        """The one folder that predictors may write to; empty where they may write wherever their user can."""
        return "/dev" if self.level == NAMESPACES else ""

    def report(self) -> dict[str, str]:
        """Return the level, and why it is no higher one, for operators."""
        return {"level": self.level, "why_not_more": self.why_not_more}

    def identities(self, runtime_dir: str) -> tuple[tuple[int, int], ...]:
        """Device and inode of everything that is hidden now; none where nothing is.

        The kernel takes a mount away when what lies under it is removed or renamed, and with it what it hides. So a
        template that was started under other identities may see what it must not.
        """
        return tuple(map(_identity, (runtime_dir, *self.hidden))) if self.level == NAMESPACES else ()

    def wrapped(
        self, command: Sequence[str], runtime_dir: str, shown: Sequence[str] = (), *, door: str = ATTACH_FOLDER
    ) -> Wrapped:
        """A command that runs `command` at this level.

        In a namespace, all that the program has started ends with it and with the thread that has started it.

        Args:
            command: Program and arguments.
            runtime_dir: Folder of the daemon's sockets, of which only that for clients is shown.
            shown: Folders that must be seen, also inside hidden ones.
            door: Folder in the runtime folder that is shown in its place: that for clients, or a tenant's.
        """
        if self.level.startswith(USER):
            entry = _entry_of(self.level.removeprefix(USER))
            return Wrapped(list(command), {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []})
        if self.level == PROCESS:
            return Wrapped(list(command), {})
        program, fd = filter_program(), -1
        flags = [_PROGRAM, *_APART, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        flags += ["--ro-bind-try", "/proc/sys", "/proc/sys"]  # which root may else write, without a capability
        flags += ["--size", str(self.scratch_bytes), "--tmpfs", _SCRATCH]
        for device in _graphics_devices():
            flags += ["--dev-bind", device, device]
        flags += ["--remount-ro", "/dev"]  # files there would count against nothing
        for path in map(os.path.realpath, self.hidden):
            if os.path.isdir(path) and not path.startswith("/dev/"):  # of which there is a new one
                flags += ["--tmpfs", path]
            elif os.path.isfile(path):
                flags += ["--ro-bind", os.devnull, path]
        within = tuple(f"{os.path.realpath(each)}/" for each in self.hidden)
        for folder in map(os.path.realpath, shown):
            if folder.startswith(within):  # all else is seen anyway
                flags += ["--ro-bind", folder, folder]
        sockets = os.path.join(runtime_dir, door)
        os.makedirs(sockets, exist_ok=True)  # a daemon that is still to come puts its socket there
        flags += ["--ro-bind", sockets, os.path.realpath(runtime_dir), "--setenv", "TMPDIR", _SCRATCH]
        if program is not None:
            fd = os.memfd_create("trims-seccomp")
            os.write(fd, program)
            os.lseek(fd, 0, os.SEEK_SET)
            flags += ["--seccomp", str(fd)]
        return Wrapped([*flags, "--", *command], {}, fd)


OWN_PROCESS = Isolation()


@dataclass(slots=True)
class Wrapped:
    """A command at its level of isolation.

    Attributes:
        command: Program and arguments.
        how: Further arguments for `subprocess.Popen`.
        fd: Descriptor that the program must inherit; -1 for none. `close` it once the program has started.
    """

    command: list[str]
    how: dict[str, Any]
    fd: int = -1

    @property
    def fds(self) -> list[int]:
        """Return what the program must inherit."""
        return [self.fd] if self.fd >= 0 else []

    def close(self) -> None:
        """Let go of the descriptor. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def choose(level: str, hidden: Sequence[str] = ()) -> Isolation:
    """The isolation that a setting stands for.

    Args:
        level: `auto`, or one of the levels. `auto` is `namespaces` where that works, else `process`.
        hidden: Folders and files of the daemon and the endpoint.

    Raises:
        ConfigError: There is no such level, or it does not work here; the message says why, and the remedy.
    """
    if level == PROCESS:
        return Isolation(PROCESS)
    if level.startswith(USER):
        _entry_of(level.removeprefix(USER))
        if os.geteuid() != 0:
            raise ConfigError(f"--isolation {level} needs root, which alone can start processes of other users")
        return Isolation(level)
    if level not in (AUTO, NAMESPACES):
        raise ConfigError(f"--isolation is {level!r}; it must be auto, process, user:NAME or namespaces")
    why = why_no_namespaces() or ("" if landlock.version() else "this kernel has no Landlock (Linux 5.13 or later)")
    if not why:
        return Isolation(NAMESPACES, tuple(hidden))
    if level == NAMESPACES:
        raise ConfigError(f"--isolation namespaces does not work here: {why}")
    return Isolation(PROCESS, why_not_more=why)


def why_no_namespaces() -> str:
    """Return why namespaces cannot be made here, with the remedy; empty if they can. Takes some milliseconds."""
    if shutil.which(_PROGRAM) is None:
        return "bwrap is not installed (Debian, Fedora: the package bubblewrap)"
    with tempfile.TemporaryDirectory(prefix="trims-probe-") as folder:
        try:
            tried = Isolation(NAMESPACES).wrapped(["true"], folder)
            try:
                done = run(tried.command, seconds=_PROBE_S, fds=tried.fds, **tried.how)
            finally:
                tried.close()
        except OSError as error:
            return f"bwrap cannot be run: {error}"
    if done.status == 0:
        return ""
    return (
        f"bwrap says: {done.err.strip()[:300]} (unprivileged user namespaces may be switched off: "
        "`sysctl kernel.unprivileged_userns_clone kernel.apparmor_restrict_unprivileged_userns`)"
    )


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _entry_of(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"--isolation user:{name}: there is no user {name!r} on this machine") from None


def _graphics_devices() -> list[str]:
    """Return the paths in /dev that a process needs to use NVIDIA's GPUs."""
    with os.scandir("/dev") as entries:
        return sorted(entry.path for entry in entries if entry.name.startswith("nvidia"))
