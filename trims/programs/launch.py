"""Start of a program by `trims exec`: from a template, or as ever.

Every way that is not open ends in executing the command as it was given; `--why` says which way was taken. Imports
here are part of what each start takes.
"""

from __future__ import annotations

# The C module under `socket`: see `trims.process.messages`.
import _socket as socket
import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import struct
import sys

import trims
from trims.core.errors import TrimsError
from trims.process import messages
from trims.programs.command_line import NotAProgram, Program, program_of
from trims.programs.door import Door
from trims.programs.identity import (
    UNREAD,
    digests,
    initial_environment,
    interpreter_identity,
    key_of,
    proof,
    unread_values,
)
from trims.programs.inside.observe import BOOT, OLDEST, SHORT
from trims.programs.inside.observed import MEMORY_BYTES
from trims.programs.inside.protocol import GO, LONG_BYTES, READY
from trims.wire.address import ATTACH_SOCKET, default_runtime_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from trims.wire.frames import Message

#: Seconds for the daemon's answer, and for the fork: a program that waits longer starts as ever.
_DAEMON_S, _FORK_S = 1.0, 5.0
_MOST_DESCRIPTORS = 250
_INSIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside")
_UCRED = struct.Struct("3i")
#: Signals that Python ignores in every process.
_PYTHONS = (signal.SIGPIPE, signal.SIGXFSZ)


class Launch:
    """One start.

    Args:
        command: Command to execute.
        runtime_dir: The daemon's; empty for the usual one.
        why: Print to standard error which way was taken.
        keep_alive_s: Seconds for which a template that this start makes is kept without being used.
        least_saving_s: Seconds that the imports of this run must take for a template to be worth its memory.
        ignored: Names of variables that do not distinguish templates.
        loaders: Whether a fork's frameworks load through the store (`trims_client.transparent`); None as the daemon is
            set.
    """

    def __init__(
        self, command: Sequence[str], *, runtime_dir: str = "", why: bool = False, keep_alive_s: float = 600.0,
        least_saving_s: float = 0.01, ignored: Sequence[str] = (), loaders: bool | None = None,
    ) -> None:  # fmt: skip
        self._command = list(command)
        self._runtime_dir = runtime_dir or default_runtime_dir()
        self._why = why
        self._keep_alive_s, self._least_saving_s = keep_alive_s, least_saving_s
        self._ignored = ignored
        self._loaders = loaders

    def run(self) -> NoReturn:
        """Start the program, and end as it ends. Raises OSError if there is no such command."""
        _restore_locale()
        try:
            _check_surroundings()
            program = program_of(self._command, os.environ)
            door, key, answer = self._ask(program)
        except NotAProgram as not_one:
            self._step_aside(str(not_one))
        except TrimsError as error:
            self._step_aside(f"the daemon at {self._runtime_dir} refuses: {error}")
        except OSError as error:
            self._step_aside(f"there is no daemon to ask at {self._runtime_dir}: {error}; start one with `trims serve`")
        if answer["state"] == "observe":
            apart = ", ".join(answer["apart"])
            since = f" since other templates of it were made with another {apart} (--ignore)" if apart else ""
            self._say(f"this run is observed{since}, and the next one starts from a template")
            try:
                self._observe(program, key, door, answer["token"])
            except OSError as error:  # such as a system call that a sandbox refuses
                self._step_aside(str(error))
        door.close()
        if answer["state"] != "ready":
            self._step_aside(answer["why"])
        self._start(program, key, answer)

    def _ask(self, program: Program) -> tuple[Door, str, Message]:
        parts = [trims.__version__, interpreter_identity(program.interpreter), program.flags, program.identity]
        paths = os.environ.get("PYTHONPATH", "")
        if paths and not all(path.startswith("/") for path in paths.split(os.pathsep)):
            parts.append(os.getcwd())
        door = Door.open(os.path.join(self._runtime_dir, ATTACH_SOCKET), _DAEMON_S)
        key = key_of(parts, os.environ, self._ignored)
        return (
            door,
            key,
            door.ask(
                {
                    "op": "program",
                    "key": key,
                    "name": _name_of(program),
                    "unread": unread_values(os.environ, self._ignored),
                    "variables": digests(os.environ, self._ignored),
                }
            ),
        )

    def _say(self, text: str) -> None:
        if self._why and sys.stderr is not None:
            with contextlib.suppress(OSError):
                sys.stderr.write(f"trims exec: {text}\n")
                sys.stderr.flush()

    def _step_aside(self, why: str) -> NoReturn:
        """Execute the command as it was given."""
        self._say(f"started as ever: {why}")
        for number in _PYTHONS:
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(self._command[0], self._command)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
        import shutil

        path = shutil.which(self._command[0]) or self._command[0]
        os.execv("/bin/sh", ["/bin/sh", path, *self._command[1:]])  # as `execvp` of C does with a script of no kind

    # -- the first run ---------------------------------------------------------------------------------------------

    def _observe(self, program: Program, key: str, door: Door, token: str) -> NoReturn:
        """Execute the program with its imports observed, beside the host that makes a template of them."""
        names = os.memfd_create("trims-names", os.MFD_CLOEXEC)
        os.ftruncate(names, MEMORY_BYTES)
        plan = {
            "key": key, "interpreter": program.interpreter, "flags": program.flags, "own": program.own,
            "environment": dict(os.environ), "working_folder": os.getcwd(), "keep_alive_s": self._keep_alive_s,
            "folder": program.folder, "unread": sorted(UNREAD.difference(self._ignored)), "token": token,
            "least_saving_s": self._least_saving_s, "loaders": our_packages(),
        }  # fmt: skip
        own = os.pidfd_open(os.getpid())
        _start_host([_in_memory(json.dumps(plan)), door.sock.fileno(), names, own])
        os.close(own)
        boot = os.memfd_create("trims-boot", os.MFD_CLOEXEC)
        # not where the interpreter looks for its standard streams, if the caller has closed these
        names, boot = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (names, boot))
        first = {
            "path": program.interpreter, "argv": program.argv, "arguments": program.arguments, "folder": _INSIDE,
            "comm": program.comm, "names": names, "boot": boot,
        }  # fmt: skip
        os.write(boot, BOOT.format(plan=first, oldest=OLDEST).encode("utf-8", "surrogateescape"))
        for fd in (names, boot):
            os.set_inheritable(fd, True)
        for number in _PYTHONS:
            signal.signal(number, signal.SIG_DFL)
        os.execv(program.interpreter, [program.argv[0], *program.flags, "-c", SHORT.format(boot=boot), *program.argv])

    # -- from a template -------------------------------------------------------------------------------------------

    def _start(self, program: Program, key: str, found: Message) -> NoReturn:
        numbers = _inherited()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            conn, pid, group, pidfd = self._fork(program, key, found, numbers, blocked)
        except (TrimsError, OSError) as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            self._step_aside(str(error))
        from trims.programs.relay import Relay

        Relay(conn, pid, group, pidfd, numbers).run()

    def _fork(
        self, program: Program, key: str, found: Message, numbers: list[int], blocked: set[Any]
    ) -> tuple[Any, int, int, int]:
        """Have the template fork the program, and begin it. Raises TrimsError, OSError: it has not begun."""
        if len(numbers) > _MOST_DESCRIPTORS:
            raise OSError(f"{len(numbers)} files are open, and {_MOST_DESCRIPTORS} are the most that can be passed on")
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        conn.connect(f"\0{found['address']}")
        if _UCRED.unpack(conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1] != os.geteuid():
            raise OSError("the template is another user's")
        nonce = os.urandom(16).hex()
        # For which it forks already, while the rest is prepared here.
        messages.send(conn, {"op": "hello", "key": key, "nonce": nonce, "leads": os.getpgrp() == os.getpid()})
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        plan = {
            "argv": program.argv, "arguments": program.arguments, "comm": program.comm, "folder": program.folder,
            "environment": dict(os.environ), "numbers": numbers, "blocked": sorted(map(int, blocked)),
            "ignored": sorted(int(each) for each in signal.valid_signals() if _is_ignored(each)),
            "loaders": found.get("loaders", True) if self._loaders is None else self._loaders, "report": self._why,
        }  # fmt: skip
        # Descriptors behind the answer only: those that lie in the queue of a host that hangs would stay open.
        answer, _ = _received(conn)
        if answer["op"] == "welcome":
            if answer["proof"] != proof(found["token"], "host", nonce):
                raise OSError("what answers at the template's address is not its host")
            plan["proof"] = proof(found["token"], "caller", answer["nonce"])
            messages.send(conn, plan, [theirs.fileno(), folder, *numbers], long=True)
            answer, fds = _received(conn)
        theirs.close()
        os.close(folder)
        if answer["op"] != "ready":
            raise OSError(answer.get("why") or "the template refuses")
        self._say(f"forked from a template with {answer['modules']} modules{_left_out(answer)}")
        _begin(ours)
        return conn, answer["pid"], answer["group"], fds[0]


def _restore_locale() -> None:
    """Take back what this interpreter has set for itself where no locale is set: the program's does so again."""
    given = initial_environment().get("LC_CTYPE")
    if given is None:
        os.environ.pop("LC_CTYPE", None)
    else:
        os.environ["LC_CTYPE"] = given


def _check_surroundings() -> None:
    """Raise NotAProgram for a variable that has the interpreter do what no fork can, or if there is no folder."""
    try:
        os.getcwd()
    except OSError as error:
        raise NotAProgram(f"there is no working folder: {error.strerror}") from error
    for name in ("PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME"):
        if os.environ.get(name):
            raise NotAProgram(f"{name} is set")
    prefix = os.environ.get("PYTHONPYCACHEPREFIX")
    if prefix and not prefix.startswith("/"):
        raise NotAProgram("PYTHONPYCACHEPREFIX is relative")


def _begin(ours: Any) -> None:
    """Have the fork begin. Raises OSError if it has not."""
    ours.settimeout(_FORK_S)
    try:
        with contextlib.suppress(BrokenPipeError):  # the fork has ended, and may have said why
            ours.send(GO)
        answer = ours.recv(1 << 12)
    finally:
        ours.close()
    if answer != READY:
        raise OSError(answer.decode(errors="replace") or "the fork has ended before it began")


def _received(conn: Any) -> tuple[Message, list[int]]:
    poll = select.poll()
    poll.register(conn, select.POLLIN)
    if not poll.poll(_FORK_S * 1000):
        raise OSError(f"the template has not forked within {_FORK_S:g} s")
    received = messages.receive(conn, long_bytes=LONG_BYTES)
    if received is None:
        raise OSError("the template has ended")
    return received


def _inherited() -> list[int]:
    """Return the descriptors that the program inherits."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not fcntl.fcntl(int(name), fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                found.append(int(name))
        except OSError:
            continue  # the listing's own
    return sorted(found)


def our_packages() -> dict[str, str]:
    """Return the folders of the packages that a program's loaders are in."""
    from importlib.util import find_spec

    trims = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    client = find_spec("trims_client")
    assert client is not None, "it comes with trims"
    assert client.origin is not None, "it is a package of files"
    return {"trims": trims, "trims_client": os.path.dirname(client.origin)}


def _is_ignored(number: Any) -> bool:
    return number not in _PYTHONS and signal.getsignal(number) is signal.SIG_IGN


def _left_out(facts: Message) -> str:
    """Return in words which modules are not in the template, those with one reason together."""
    by_reason: dict[str, list[str]] = {}
    for name, why in {**facts["left_out"], **facts["failed"]}.items():
        by_reason.setdefault(why, []).append(name)
    return "".join(f"; without {', '.join(names)}: {why}" for why, names in by_reason.items())


def _name_of(program: Program) -> str:
    kind, name = program.identity
    return (name if kind == "script" else f"{kind} {name}".strip())[:200]


def _in_memory(text: str) -> int:
    fd = os.memfd_create("trims-plan", os.MFD_CLOEXEC)
    os.write(fd, text.encode("utf-8", "surrogateescape"))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _start_host(fds: list[int]) -> None:
    """Start the host of a template as no child of this process, which is about to be the program."""
    from trims.process.python import run_ours

    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in fds]  # the caller may have closed its streams
    command = run_ours("trims.programs.host", *map(str, fds), flags=("-I", "-S"))
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                os.chdir("/")
                null = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(null, number)
                for name in os.listdir("/proc/self/fd"):
                    number = int(name)
                    if number > 2 and number not in fds and _is_open(number):
                        os.close(number)
                for fd in fds:
                    os.set_inheritable(fd, True)
                os.execv(command[0], command)
        finally:
            os._exit(0)
    with contextlib.suppress(ChildProcessError):  # the caller ignores SIGCHLD: the kernel has waited for it
        os.waitpid(pid, 0)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
