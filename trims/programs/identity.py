"""Identity of processes: what must be equal for one to run in the place of another, and what can be made equal.

User, groups, capabilities, control group, namespaces, root folder, security label and filters of system calls are what
a fork of a template has from the template for ever. Libraries count processors and read some limits when they are
loaded, and keep what they have made of that. All else that a process inherits can be set in the fork.
"""

from __future__ import annotations

import os

try:
    from _blake2 import blake2b as _blake2b  # of hashlib, whose import loads OpenSSL
except ImportError:
    from hashlib import blake2b as _blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FIELDS = (
    "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters", "CapInh", "CapPrm", "CapEff", "CapBnd",
    "CapAmb", "Cpus_allowed",
)  # fmt: skip
#: Limits that decide how many threads a library starts, and with what memory.
_LIMITS = ("Max address space", "Max data size", "Max stack size", "Max processes")
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children", "user", "uts")
_MOST_LETTERS = 1024
#: Variables that no import reads, and that differ from one shell, terminal or request to the next.
UNREAD = frozenset((
    "_", "OLDPWD", "PWD", "SHLVL", "TERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TERM_SESSION_ID", "COLORTERM",
    "COLUMNS", "LINES", "WINDOWID", "TRACEPARENT", "TRACESTATE", "BAGGAGE", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY",
    "SSH_AUTH_SOCK", "TMUX", "TMUX_PANE", "STY",
    "XDG_SESSION_ID", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "GUNICORN_FD",
    "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS", "GPG_TTY", "GNOME_TERMINAL_SCREEN",
    "KONSOLE_DBUS_SERVICE", "KONSOLE_DBUS_SESSION", "KONSOLE_DBUS_WINDOW", "ITERM_SESSION_ID", "VSCODE_IPC_HOOK_CLI",
    "VSCODE_GIT_IPC_HANDLE", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_PID",
))  # fmt: skip


def identity_of(pid: int | str = "self") -> str:
    """Return what is equal for processes that may run in each other's place, as text.

    Args:
        pid: Process of this user.

    Raises:
        OSError: The process has ended, or may not be looked at.
    """
    root = os.stat(f"/proc/{pid}/root/")
    lines = [f"root {root.st_dev} {root.st_ino}"]
    with open(f"/proc/{pid}/status") as file:
        lines += [line.strip() for line in file if line.partition(":")[0] in _FIELDS]
    with open(f"/proc/{pid}/limits") as file:
        lines += [line.strip() for line in file if line.startswith(_LIMITS)]
    with open(f"/proc/{pid}/cgroup") as file:
        lines.append(file.read())
    for name in _NAMESPACES:
        try:
            lines.append(os.readlink(f"/proc/{pid}/ns/{name}"))
        except FileNotFoundError:
            continue  # a kernel that has none of this kind
    try:
        with open(f"/proc/{pid}/attr/current") as file:
            lines.append(file.read())
    except OSError:
        pass  # no module of the kernel labels processes
    return "\n".join(lines)


def initial_environment() -> dict[str, str]:
    """Return the environment that this process was started with, before its interpreter changed it (PEP 538)."""
    with open("/proc/self/environ", "rb") as file:
        pairs = (each.partition(b"=") for each in file.read().split(b"\0"))
        return {os.fsdecode(name): os.fsdecode(value) for name, sign, value in pairs if sign}


def mounts(pid: int | str = "self") -> str:
    """Return the mount namespace of a process. Raises OSError."""
    return os.readlink(f"/proc/{pid}/ns/mnt")


def proof(token: str, side: str, nonce: str) -> str:
    """Return what only a process that knows a template's token can answer to another one's nonce.

    Args:
        side: Side that proves it: `host` or `caller`.
        nonce: A text that the other one has made for this.
    """
    return _blake2b(f"{side} {nonce}".encode(), key=token.encode(), digest_size=16).hexdigest()


def key_of(parts: Sequence[object], environment: Mapping[str, str], ignored: Sequence[str] = ()) -> str:
    """Return the key of the template that a program may be forked from.

    Args:
        parts: What identifies interpreter, flags and program.
        environment: Variables; each counts but those that no import reads.
        ignored: Names of further variables that do not count.
    """
    counted = sorted(item for item in environment.items() if item[0] not in UNREAD and item[0] not in ignored)
    text = repr((parts, identity_of(), counted))
    return _blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def digests(environment: Mapping[str, str], ignored: Sequence[str] = ()) -> dict[str, str]:
    """Return a short digest of the value of each variable that counts in `key_of`, to show which one differs."""
    counted = environment.keys() - UNREAD - set(ignored)
    return {
        name: _blake2b(environment[name].encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
        for name in sorted(counted)
        if name.isprintable()
    }


def unread_values(environment: Mapping[str, str], ignored: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables that should not distinguish templates, and the working folder under an empty name.

    Some program's imports read one all the same: then it does distinguish templates of that program.

    Args:
        ignored: Names of variables that do not distinguish templates even then.
    """
    names = sorted((UNREAD & environment.keys()).difference(ignored))
    found = {name: environment[name][:_MOST_LETTERS] for name in names}
    return {name: value for name, value in {**found, "": os.getcwd()}.items() if value.isprintable()}


def interpreter_identity(path: str) -> tuple[object, ...]:
    """Return what changes when an interpreter or its virtual environment is another one. Raises OSError."""
    found: list[object] = [path]
    real = os.path.realpath(path)
    for each in (real, os.path.join(os.path.dirname(os.path.dirname(path)), "pyvenv.cfg")):
        try:
            status = os.stat(each)
        except FileNotFoundError:
            continue
        found.append((each, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)
