"""The template of a program: it has imported what the program imports, has one thread, and is forked for each start.

Standard library only until its first message. Messages on its socket to the host:

    {"op": "import", "modules": [...], "banned": [...], "own": NAME, "folder": ..., "unread": [...]}
                            -> {"op": "imported", ...}, or {"op": "spoilt", "modules": [...], "why": ...}
    {"op": "fork", "leads": ...} and a socket
                            -> {"op": "forked", "pid": ..., "group": ...} and a pidfd, or {"op": "refused", "why": ...}

and without being asked {"op": "ended", "pid": ..., "status": ..., "modules": [...]} and {"op": "stopped", "pid": ...,
"signal": ...}. The template ends with its socket; its programs do not. A fork is asked for before it is known what it
becomes, which it reads on its own socket, with descriptors: the caller prepares that while the template forks.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING

from trims.process import fork_safety, messages
from trims.process.lifeline import depend_on
from trims.process.randomness import reseed
from trims.programs.inside.ending import Ending
from trims.programs.inside.importing import Importer
from trims.programs.inside.main_program import run
from trims.programs.inside.observed import MEMORY_BYTES, read_names
from trims.programs.inside.protocol import GO, LONG_BYTES, MOST_DESCRIPTORS, READY
from trims.programs.inside.surroundings import become, take_descriptors

if TYPE_CHECKING:
    from trims.wire.frames import Message


class Fork(BaseException):
    """Raised in a fork, to leave all frames of the template.

    Args:
        sock: Descriptor of the fork's socket to the host.
        memory: For the names of what it imports.
    """

    def __init__(self, sock: int, memory: mmap.mmap) -> None:
        super().__init__()
        self.sock, self.memory = sock, memory


class Template:
    """Template that imports and forks as the messages on its socket say.

    Args:
        sock: To the host.
        before: Names of the modules that every interpreter has when a program begins.
        lifeline: Descriptor of this process's own.
        output: File that standard output and error go to.
        progress: File for the index of the module that is being imported.
    """

    def __init__(self, sock: socket.socket, before: set[str], lifeline: int, output: int, progress: int) -> None:
        self._sock = sock
        self._lifeline = lifeline
        self._before, self._output, self._progress = before, output, progress
        #: pid -> memory in which it reports modules
        self._children: dict[int, mmap.mmap] = {}

    def serve(self) -> None:
        """Carry out messages and report on forks until the host lets go. Raises Fork in a fork."""
        poll = select.poll()
        reads, wakes = self._wakers = socket.socketpair()
        for end in self._wakers:
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        self._known = {self._sock.fileno(), self._lifeline, reads.fileno(), wakes.fileno()}
        poll.register(self._sock, select.POLLIN)
        poll.register(reads, select.POLLIN)
        self._importer = Importer(self._before, self._known, self._output, self._progress)
        while True:
            for fd, _ in poll.poll():
                if fd == reads.fileno():
                    with contextlib.suppress(BlockingIOError):
                        reads.recv(1 << 12)
                    self._reap()
                elif not self._carry_out():
                    return

    def _carry_out(self) -> bool:
        received = messages.receive(self._sock, most_fds=MOST_DESCRIPTORS, long_bytes=LONG_BYTES)
        if received is None:
            return False
        message, fds = received
        if message["op"] == "import":
            messages.send(self._sock, self._importer.run(message), long=True)
        else:
            self._fork(fds, leads=message["leads"])
        return True

    # -- forks -----------------------------------------------------------------------------------------------------

    def _fork(self, fds: list[int], *, leads: bool) -> None:
        """Fork a program.

        Args:
            fds: Of its socket to the host.
            leads: It leads its process group, as its caller does. A leader cannot begin a session of its own.
        """
        why = self._blocker({*self._known, *fds})
        if why is not None:
            messages.close_all(fds)
            messages.send(self._sock, {"op": "refused", "why": why})
            return
        memory = mmap.mmap(-1, MEMORY_BYTES)
        group = 0 if leads else _new_group()
        pid = os.fork()
        if pid == 0:
            raise Fork(fds[0], memory)
        messages.close_all(fds)
        os.setpgid(pid, group)
        if group:
            os.waitpid(group, 0)
        self._children[pid] = memory
        pidfd = os.pidfd_open(pid)
        messages.send(self._sock, {"op": "forked", "pid": pid, "group": group or pid}, [pidfd])
        os.close(pidfd)

    def _blocker(self, own: set[int]) -> str | None:
        """Return why this process must not be forked now; None if it may be."""
        return None if self._importer.restarting else fork_safety.fork_blocker(own)

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
            for each in (self._sock, *self._wakers):
                each.close()  # or the template's end could not be seen while this one waits
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

    def _reap(self) -> None:
        """Report on forks. One that has ended is buried after that, or its status would be lost with this process."""
        options = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, options):
                if found.si_code == os.CLD_STOPPED:
                    messages.send(self._sock, {"op": "stopped", "pid": found.si_pid, "signal": found.si_status})
                    os.waitid(os.P_PID, found.si_pid, os.WSTOPPED | os.WNOHANG)
                    continue
                status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                memory = self._children.pop(found.si_pid, None)
                modules = read_names(memory)[0] if memory is not None else []
                ended = {"op": "ended", "pid": found.si_pid, "status": status, "modules": modules}
                messages.send(self._sock, ended, long=True)
                os.waitid(os.P_PID, found.si_pid, os.WEXITED)


def _new_group() -> int:
    """Return a process group whose leader has ended, and is waited for once another process is in it.

    Return 0 where there is no program to make it of.
    """
    try:
        return os.posix_spawn("/bin/true", ["true"], {}, setpgroup=0)
    except OSError:
        return 0


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
    template = Template(socket.socket(fileno=sock), before, lifeline, output, progress)
    try:
        template.serve()
        os._exit(0)
    except Fork as forked:
        fork = forked
    except BaseException:  # noqa: BLE001 - nothing may get out of a template but a fork
        sys.excepthook(*sys.exc_info())
        os._exit(70)
    plan = template.begin(fork, ending)
    run(plan["arguments"], plan["argv"], ending.note)
