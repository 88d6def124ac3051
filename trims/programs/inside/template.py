"""The template of a program: it has imported what the program imports, has one thread, and is forked for each start.

Standard library only until its first message. Messages are those of `fork_loop`, with more fields:

    {"op": "import", "modules": [...], "banned": [...], "own": NAME, "folder": ..., "unread": [...], "loaders": {...}}
                            -> {"op": "imported", ...}, or {"op": "unfit", "modules": [...], "why": ...}
    {"op": "fork", "leads": ...} and a socket
                            -> {"op": "forked", "pid": ..., "group": ...} and a pidfd

and without being asked {"op": "stopped", "pid": ..., "signal": ...}. A fork is asked for before it is known what it
becomes, which it reads on its own socket, with descriptors: the caller prepares that while the template forks.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import itertools
import mmap
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from trims.process import messages
from trims.process.lifeline import depend_on
from trims.programs.inside.importing import Importer, is_imported
from trims.programs.inside.loaders import Loaders
from trims.programs.inside.main_program import run
from trims.programs.inside.observed import MEMORY_BYTES, PLACE, read_names, with_detail, write_name
from trims.programs.inside.protocol import GO, LONG_BYTES, MOST_DESCRIPTORS, READY
from trims.programs.inside.surroundings import become, take_descriptors
from trims.templates.fork_loop import ForkLoop
from trims.templates.randomness import reseed

if TYPE_CHECKING:
    from collections.abc import Collection

    from trims.wire.frames import Message


#: Modules of the interpreter's own loaders.
_LOADERS = ("_frozen_importlib", "_frozen_importlib_external", "zipimport")
#: Our packages in a program, which its loaders are in: no template imports them.
_OURS = ("trims", "trims_client")
#: Exit status of a program whose standard output could not be written, as Python's own.
_UNWRITTEN = 120


class Fork(BaseException):
    """Raised in a fork, to leave all frames of the template.

    Args:
        sock: Descriptor of the fork's socket to the host.
        memory: Memory for the names of what it imports.
    """

    def __init__(self, sock: int, memory: mmap.mmap) -> None:
        super().__init__()
        self.sock, self.memory = sock, memory


class Template(ForkLoop):
    """Template of a program.

    Args:
        before: Names of the modules that every interpreter has when a program begins.
        output: File that standard output and error go to.
        progress: File for the index of the module that is being imported.
    """

    def __init__(self, sock: socket.socket, lifeline: int, before: set[str], output: int, progress: int) -> None:
        super().__init__(sock, lifeline, long_bytes=LONG_BYTES)
        #: pid -> memory in which it reports modules
        self._memories: dict[int, mmap.mmap] = {}
        self._wakers = socket.socketpair()
        for end in self._wakers:
            end.setblocking(False)
            self._known.add(end.fileno())
        self._poll.register(self._wakers[0], select.POLLIN)
        self._importer = Importer(before, self._known, output, progress)
        self.loaders = Loaders({}, "")

    def serve(self) -> None:
        """Carry out messages and report on forks until the host lets go. Raises Fork in a fork."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakers[1].fileno(), warn_on_full_buffer=False)
        super().serve()

    def _import(self, message: Message) -> Message:
        imported = self._importer.run(message)
        if imported["op"] == "imported":
            self.loaders = Loaders(message["loaders"], message["folder"])
        return imported

    def _blocker(self, own: Collection[int]) -> str | None:
        return None if self._importer.restarting else super()._blocker(own)

    def _fork(self, message: Message, fds: list[int]) -> tuple[int, Message]:
        """Fork a program. One that leads its process group, as its caller does, cannot begin a session of its own."""
        memory = mmap.mmap(-1, MEMORY_BYTES)
        group = 0 if message["leads"] else _new_group()
        pid = os.fork()
        if pid == 0:
            raise Fork(fds[0], memory)
        os.setpgid(pid, group)
        if group:
            os.waitpid(group, 0)
        self._memories[pid] = memory
        return pid, {"group": group or pid}

    def begin(self, fork: Fork, ending: Ending) -> Message:
        """Make a fork the program's process, and wait until the caller begins; without that it ends.

        Returns:
            The plan: see `surroundings.become`; `arguments` and `argv` are the program's, `numbers` its descriptors'.
            It comes with the socket on which the caller says that it begins, and those for `take_descriptors`.
        """
        go = -1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._leave()
            for each in self._wakers:
                each.close()
            with socket.socket(fileno=fork.sock) as sock:
                received = messages.receive(sock, most_fds=MOST_DESCRIPTORS, long_bytes=LONG_BYTES)
            if received is None:
                os._exit(0)
            plan, (go, *fds) = received
            go = take_descriptors(plan["numbers"], fds, go)
            become(plan, self._importer.changed)
            reseed(self._importer.reseeders)
            ending.begin(fork.memory)
            gc.enable()
        except BaseException as error:  # noqa: BLE001 - the caller runs the program itself
            with contextlib.suppress(OSError):
                os.write(go, f"{type(error).__name__}: {error}"[:1000].encode())
            os._exit(70)
        try:
            if os.read(go, 1) != GO:
                os._exit(0)
            os.write(go, READY)
        except OSError:
            os._exit(0)  # its caller is gone
        os.close(go)
        return plan

    def _ended(self, pid: int) -> Message:
        return {"modules": read_names(self._memories.pop(pid))[0]}

    def _turn(self) -> None:
        """Report which forks have stopped; that they end is seen by their descriptors."""
        with contextlib.suppress(BlockingIOError):
            self._wakers[0].recv(1 << 12)
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WNOHANG):
                messages.send(self._sock, {"op": "stopped", "pid": found.si_pid, "signal": found.si_status})


def _new_group() -> int:
    """Return a process group whose leader has ended, and is waited for once another process is in it.

    Return 0 where there is no program to make it of.
    """
    try:
        return os.posix_spawn("/bin/true", ["true"], {}, setpgroup=0)
    except OSError:
        return 0


class Ending:
    """End of the programs that are forked from this process. Made before anything else registers with `atexit`.

    Taking down all that a template has imported would copy its memory and take longer than most programs. So the
    program's own objects are taken down, all that is buffered is written, and the process ends at once.
    """

    def __init__(self) -> None:
        self._status: int | None = None
        self._interrupted = False
        self._memory: mmap.mmap | None = None
        self._count = 0
        self._flush_all = ctypes.CDLL(None).fflush
        atexit.register(self._last)

    def begin(self, memory: mmap.mmap) -> None:
        """Note in a fork which modules are the template's.

        Args:
            memory: The names of all others are written there at the end.
        """
        self._memory, self._count = memory, len(sys.modules)

    def note(self, status: int, interrupted: bool) -> None:
        """Note how the program has ended; called before the interpreter ends."""
        self._status, self._interrupted = status, interrupted

    def _last(self) -> None:
        """End the process. The functions that others have registered with `atexit` have run."""
        if self._status is None:
            return
        status = self._status
        _flush()
        new = [str(name) for name in itertools.islice(sys.modules, self._count, None)]
        assert self._memory is not None
        for name in new:
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if getattr(getattr(spec, "loader", None), "__module__", None) not in _LOADERS:
                continue  # a finder of the program's own has loaded it, such as pytest's
            if name.partition(".")[0] in _OURS or not is_imported(name):
                continue  # it is there under a second name, which nothing can import
            write_name(self._memory, name)
            if spec is not None and "." not in name:
                write_name(self._memory, with_detail(PLACE, name, str(spec.origin or "")))
        _take_down(new)
        status = status if _flush() else _UNWRITTEN
        self._flush_all(None)
        if self._interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(status)


def _flush() -> bool:
    """Flush standard output and error. Return whether all of standard output was written."""
    written = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception as error:  # noqa: BLE001 - a program may have put anything there
            if stream is sys.stdout:
                written = False
                sys.unraisablehook(_Unraisable(error, stream))  # type: ignore[arg-type]
    return written


class _Unraisable:
    """Error that nothing can catch any more, as `sys.unraisablehook` takes it."""

    def __init__(self, error: Exception, culprit: object) -> None:
        self.exc_type, self.exc_value, self.exc_traceback = type(error), error, error.__traceback__
        self.err_msg, self.object = None, culprit


def _take_down(modules: list[str]) -> None:
    """Let go of what the program has made, so that its finalisers run and its files are written."""
    for attribute in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, attribute):
            setattr(sys, attribute, None)
    found: list[Any] = [sys.modules.pop(name, None) for name in reversed(modules)]
    main = sys.modules.get("__main__")
    names = vars(main) if main is not None else {}
    del main
    private = [name for name in names if name.startswith("_") and not name.startswith("__")]
    for name in [*private, *(name for name in names if name != "__builtins__")]:  # in the interpreter's own order
        names[name] = None
    found.clear()
    gc.enable()
    gc.collect()


def main(before: set[str]) -> None:
    """Entry: the arguments are descriptors, behind the folder of our package.

    Args:
        before: Names of the modules that were there before ours.
    """
    sock, lifeline, output, progress = (int(number) for number in sys.argv[2:6])
    for fd in (sock, lifeline, output, progress):
        os.set_inheritable(fd, False)
    os.setpgid(0, 0)
    depend_on(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ending = Ending()
    template = Template(socket.socket(fileno=sock), lifeline, before, output, progress)
    try:
        template.serve()
        os._exit(0)
    except Fork as forked:
        fork = forked
    except BaseException:  # noqa: BLE001 - nothing may get out of a template but a fork
        sys.excepthook(*sys.exc_info())
        os._exit(70)
    plan = template.begin(fork, ending)
    template.loaders.begin(wanted=plan.get("loaders", False), report=plan.get("report", False))
    run(plan["arguments"], plan["argv"], ending.note)
