"""Sandbox that keeps predictors apart from the machine, in one of three levels.

1. `process`: a process of its own, in a process group of its own, with the rights of the user who runs the endpoint.
2. `user:NAME`: the same with the rights of another user. Only root can start such.
3. `namespaces`: bubblewrap (`bwrap`) starts templates, without any privilege, in namespaces of their own (user, mount,
   process ids, IPC, network, host name). The file system is read-only. The daemon's files, its control socket and the
   shared memory of other models are not there. No network is reachable, and no other process is seen. System calls
   that no model needs fail (see `seccomp`). It works wherever unprivileged user namespaces are allowed.

Predictors of one environment share the namespaces of its template. They see each other, and Landlock keeps them from
reading each other's memory (`landlock`). docs/inference.md lists what the level `namespaces` does not do.
"""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import ConfigError
from trims.process.oneshot import run
from trims.wire.address import ATTACH_FOLDER
from trims_predictors.sandbox import landlock
from trims_predictors.sandbox.seccomp import filter_program

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        fd: That the program must inherit; -1 for none. `close` it once the program has started.
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
