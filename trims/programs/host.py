"""The host of one template: it observes a program's first run, makes the template of it, and starts programs from it.

One process for each program and environment, started by `trims exec` beside the first run, so it has the identity of
its callers. Its session at the daemon's attach door makes the template known; the daemon ends the template by ending
the session. Callers connect to the host itself, and hold a connection for as long as their program runs. If a caller
ends first, its program is killed. If the template ends, its programs are handed to the host, which reports how they
end.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from trims.core.errors import BadMessageError, LostPeerError, TrimsError
from trims.process import messages
from trims.process.subreaper import adopt
from trims.programs.door import Door
from trims.programs.freshness import Files, shadow, site_files
from trims.programs.identity import identity_of
from trims.programs.inside.observed import MARKS, MEMORY_BYTES, read_names
from trims.programs.inside.protocol import LONG_BYTES, MOST_DESCRIPTORS
from trims.programs.settings import differences
from trims.programs.template_process import TemplateProcess
from trims.wire.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.wire.frames import Message

#: Seconds without a new import after which a program that still runs counts as started.
_QUIET_S = 2.0
#: Seconds between two looks at an observed program's imports.
_LOOK_S = 0.5
#: Templates that are tried, each without the modules that have spoilt the last.
_MOST_ROUNDS = 24
#: Seconds that a template may take for a fork; callers wait longer.
_FORK_S = 3.0
#: Seconds that a template may take to import.
_IMPORT_S = 300.0
#: Times that a template is made again because its programs import more.
_MOST_RENEWALS = 16
#: Forks that a template is asked for at once. Messages have 96 KiB at most, and two of them fit into a socket.
_MOST_PENDING = 2
_ACCEPT_PAUSE_S = 0.05
#: Modules that are reported to the daemon as left out.
_MOST_LEFT_OUT = 50


class _Unfit(Exception):  # noqa: N818 - no error of ours
    """The program cannot have a template; the message says why."""


class Start:
    """One start of a program.

    Attributes:
        conn: To the caller.
        verdict: Why the fork must not be used; empty if it may be, None before that is known.
        pid: Of the fork; 0 before there is one, and after its end.
        pidfd: Of it.
    """

    def __init__(self, conn: socket.socket) -> None:
        self.conn = conn
        self.asked = False
        self.verdict: str | None = None
        self.pid = 0
        self.pidfd = -1
        self.gone = False


class Host:
    """Host of the template of one program.

    Args:
        plan: `interpreter`, `flags`, `environment`, `folder`, `working_folder` and `own` of the program, its `key`, the
            names of variables that no import should read (`unread`), and `keep_alive_s`.
        door: Session at the daemon that has granted the making of this template.
        names: Memory in which the first run notes what it imports.
        program: Descriptor of that run (pidfd).
    """

    def __init__(self, plan: Message, door: Door, names: mmap.mmap, program: int) -> None:
        self._plan = plan
        self._door: Door | None = door
        self._names = names
        self._program = program
        self._identity = identity_of()
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._template: TemplateProcess | None = None
        self._coming: TemplateProcess | None = None
        self._learned: list[str] = []
        self._left_out: dict[str, str] = {}
        #: Modules whose import failed, and why: a template does without them, too.
        self._failed: dict[str, str] = {}
        self._foreign: set[str] = set()
        self._files: Files | None = None
        self._listener: socket.socket | None = None
        self._starts: dict[int, Start] = {}
        #: Starts that the template was not asked for yet: what it is asked, and the descriptors.
        self._waiting: deque[tuple[Start, Message, list[int]]] = deque()
        self._by_pid: dict[int, Start] = {}
        self._rounds = 0
        self._renewals = 0
        self._last_start_s = self._asked_s = time.monotonic()
        self._seen = (0, time.monotonic())
        self._import_until_s = 0.0

    def run(self) -> None:
        """Serve until nothing is left to do."""
        reads, wakes = socket.socketpair()
        for end in (reads, wakes):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        self._watch(reads.fileno(), lambda: self._woken(reads))
        assert self._door is not None
        self._watch(self._door.sock.fileno(), self._hear_daemon)
        self._watch(self._program, self._observed_to_its_end)
        try:
            while self._door is not None or self._starts:
                for fd, _ in self._poll.poll(self._pause_ms()):
                    if handler := self._handlers.get(fd):
                        self._guarded(handler)
                self._guarded(self._tick)
        finally:
            for template in (self._template, self._coming):
                if template is not None:
                    template.close()

    def _guarded(self, handler: Callable[[], None]) -> None:
        """Carry something out. If it fails, no more programs are started, and those that run have their host still."""
        try:
            handler()
        except _Unfit as unfit:
            self._report_unfit(str(unfit))
            self._retire()
        except Exception as error:  # noqa: BLE001 - programs that run depend on this process
            self._report_unfit(f"its host failed: {type(error).__name__}: {error}")
            self._retire()

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _unwatch(self, fd: int) -> None:
        del self._handlers[fd]
        self._poll.unregister(fd)

    def _pause_ms(self) -> float:
        waits = self._template is None or self._coming is not None or self._template.pending
        return _LOOK_S * 1000 if waits else 5000

    def _tick(self) -> None:
        """Do what time brings: the end of a first run's imports, of patience, of a template that is not used."""
        now_s = time.monotonic()
        if self._door is None:
            return
        if self._coming is not None:
            if now_s > self._import_until_s:
                self._without([self._coming.last_module()], f"it was not imported within {_IMPORT_S:g} s")
        elif self._template is None and self._program >= 0:
            _, end = read_names(self._names, 0)
            if end != self._seen[0]:
                self._seen = (end, now_s)
            elif end > 0 and now_s - self._seen[1] > _QUIET_S:
                self._prepare()
        elif self._template is not None and self._template.pending and now_s - self._asked_s > _FORK_S:
            self._retire()  # it hangs, and holds what its callers have open
        elif not self._starts and now_s - self._last_start_s > self._plan["keep_alive_s"]:
            self._retire()

    # -- the daemon ------------------------------------------------------------------------------------------------

    def _hear_daemon(self) -> None:
        if self._door is not None and self._door.has_ended():
            self._retire()

    def _retire(self) -> None:
        """Start no more programs; those that run go on."""
        if self._door is not None:
            self._unwatch(self._door.sock.fileno())
            self._door.close()
            self._door = None
        if self._listener is not None:
            self._unwatch(self._listener.fileno())
            self._listener.close()
            self._listener = None
        for name in ("_template", "_coming"):
            template = getattr(self, name)
            if template is not None:
                setattr(self, name, None)
                self._drop(template)
        while self._waiting:
            messages.close_all(self._waiting.popleft()[2])
        for start in list(self._starts.values()):
            if not start.pid:
                self._end_start(start)

    def _report_unfit(self, why: str) -> None:
        if self._door is not None:
            with contextlib.suppress(TrimsError, OSError):
                self._door.ask({"op": "template", "key": self._plan["key"], "unfit": why[:1000]})

    def _announce(self) -> None:
        """Make the template known to the daemon, with what it takes. Raises _Unfit if the daemon has no room for it."""
        assert self._door is not None
        assert self._template is not None
        assert self._template.facts is not None
        if self._listener is None:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._listener.bind(f"\0trims-template-{secrets.token_hex(16)}")
            self._listener.listen(256)
            self._listener.setblocking(False)
            self._watch(self._listener.fileno(), self._accept)
        try:
            self._door.ask({
                "op": "template", "key": self._plan["key"], "address": self._listener.getsockname()[1:].decode(),
                "pid": self._template.child.pid, "nbytes": self._template.memory_bytes(),
                "reads": self._template.facts["reads"], "modules": self._template.facts["count"],
                "left_out": dict(list({**self._left_out, **self._failed}.items())[:_MOST_LEFT_OUT]),
            })  # fmt: skip
        except TrimsError as error:
            raise _Unfit(str(error)) from error
        except OSError:
            self._retire()

    # -- making the template ---------------------------------------------------------------------------------------

    def _observed_to_its_end(self) -> None:
        self._unwatch(self._program)
        os.close(self._program)
        self._program = -1
        if self._template is None and self._coming is None:
            self._prepare()
        elif self._template is not None:
            self._learn(read_names(self._names)[0])

    def _prepare(self) -> None:
        self._learned = read_names(self._names)[0]
        self._begin_template()

    def _begin_template(self) -> None:
        self._rounds += 1
        if self._rounds > _MOST_ROUNDS:
            left = ", ".join(list(self._left_out)[:5])
            raise _Unfit(f"no template can be made of what it imports: {left} and others cannot be in one")
        plan = self._plan
        try:
            self._coming = TemplateProcess(
                plan["interpreter"], plan["flags"], plan["environment"], self._learned,
                banned=list(self._left_out), own=plan["own"],
                folder=plan["folder"], working_folder=plan["working_folder"], unread=plan["unread"],
            )  # fmt: skip
        except OSError as error:
            raise _Unfit(f"{plan['interpreter']} cannot be started: {error}") from error
        self._import_until_s = time.monotonic() + _IMPORT_S
        coming = self._coming
        self._watch(coming.child.socket.fileno(), lambda: self._hear_template(coming))

    def _without(self, modules: list[str], why: str) -> None:
        """Begin once more, without modules that have spoilt the template, or killed it."""
        assert self._coming is not None
        coming, self._coming = self._coming, None
        self._drop(coming)
        new = [name for name in modules if name and not _is_within(name, tuple(self._left_out))]
        if not new:
            raise _Unfit(why)
        self._left_out.update(dict.fromkeys(new, why))
        self._begin_template()

    def _drop(self, template: TemplateProcess) -> None:
        """End a template; the forks that nothing has heard of yet end with their callers' connections."""
        self._unwatch(template.child.socket.fileno())
        for start in template.pending:
            start.verdict = "the template has ended"
            self._refuse(start)
        template.pending.clear()
        if template is not self._coming and self._template is not None:
            self._fork_next(self._template)  # it is the one after this
        template.close()
        self._reap()

    def _hear_template(self, template: TemplateProcess) -> None:
        try:
            received = template.receive()
        except BlockingIOError:  # see `_hear_caller`
            return
        except BadMessageError:
            received = None
        if received is None:
            self._lose(template)
            return
        message, fds = received
        op = message["op"]
        if op == "imported":
            self._take(template, message)
        elif op == "spoilt":
            self._without(message["modules"], message["why"])
        elif op in ("forked", "refused"):
            self._forked(template, message, fds)
        elif op == "stopped":
            self._report(message["pid"], {"op": "stopped", "signal": message["signal"]})
        elif op == "ended":
            self._report_end(message["pid"], message["status"])
            self._learn(message["modules"])

    def _lose(self, template: TemplateProcess) -> None:
        if template is self._coming:
            words = template.last_words()
            self._without([template.last_module()], f"the template ended while it imported it: {words[-200:]}")
        else:
            self._retire()

    def _take(self, template: TemplateProcess, facts: Message) -> None:
        template.facts = facts
        files = Files(
            [*facts["files"], *site_files(facts["prefix"], facts["sites"])], facts["sites"], template.since_ns
        )
        if files.torn is not None:  # it was installed just now
            self._coming = None
            self._drop(template)
            time.sleep(0.1)
            self._begin_template()
            return
        self._foreign.update(facts["own"])
        self._failed = facts["failed"]
        old, self._template, self._coming, self._files = self._template, template, None, files
        self._rounds = 0
        if old is not None:
            self._drop(old)
        self._last_start_s = max(self._last_start_s, time.monotonic())
        self._announce()

    def _learn(self, modules: list[str]) -> None:
        """Make the template again if programs have imported modules that it does not know."""
        known, banned = {*self._learned, *self._failed}, tuple(self._left_out)
        others = [name for name in modules if name not in known and not _is_within(name, banned)]
        new = [name for name in others if name[0] not in MARKS and name.partition(".")[0] not in self._foreign]
        if new and self._door is not None and self._coming is None and self._renewals < _MOST_RENEWALS:
            self._renewals += 1
            self._learned += others
            self._begin_template()

    # -- starts ----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            conn, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left: the caller waits, and starts its program as ever
            time.sleep(_ACCEPT_PAUSE_S)
            return
        if Peer.of(conn).uid != os.geteuid():
            conn.close()
            return
        conn.setblocking(False)
        start = Start(conn)
        self._starts[conn.fileno()] = start
        self._watch(conn.fileno(), lambda: self._hear_caller(start))

    def _hear_caller(self, start: Start) -> None:
        try:
            received = messages.receive(start.conn, most_fds=MOST_DESCRIPTORS, long_bytes=LONG_BYTES)
        except BlockingIOError:  # the descriptor had another meaning when it was polled
            return
        except BadMessageError:
            received = None
        if received is None:
            self._caller_gone(start)
            return
        message, fds = received
        if message.get("op") == "hello" and not fds:
            self._send(start, {"op": "welcome"})
            return
        try:
            if start.asked or self._template is None:
                raise LostPeerError("the template has ended")
            start.asked = True
            self._last_start_s = time.monotonic()
            self._start(start, self._template, message, fds)
        except (TrimsError, OSError) as error:
            messages.close_all(fds)
            start.verdict = str(error)
            self._refuse(start)
        except (KeyError, TypeError, ValueError) as error:
            messages.close_all(fds)
            start.verdict = f"the request of the caller cannot be read, install the same trims: {error!r}"
            self._refuse(start)

    def _start(self, start: Start, template: TemplateProcess, plan: Message, fds: list[int]) -> None:
        """Have the template fork, and look meanwhile whether the fork may be used."""
        pid = Peer.of(start.conn).pid
        if identity_of(pid) != self._identity:
            raise LostPeerError("the caller is in another control group, namespace or sandbox, or has other rights")
        self._waiting.append((start, {**plan, **differences(pid), "op": "fork"}, fds))
        self._fork_next(template)
        assert self._files is not None
        changed = self._files.changed()
        if changed is None:
            start.verdict = self._shadowed(template, plan["folder"])
            self._answer(start)
        else:
            start.verdict = f"{changed} has changed since the template was made"
            self._answer(start)
            self._retire()

    def _fork_next(self, template: TemplateProcess) -> None:
        """Have the template fork for those that wait, a few at a time: a message beyond those might have to wait."""
        while self._waiting and len(template.pending) < _MOST_PENDING:
            start, plan, fds = self._waiting.popleft()
            try:
                if not start.gone:
                    messages.send(template.child.socket, plan, fds, long=True)
                    template.pending.append(start)
                    self._asked_s = time.monotonic()
            finally:
                messages.close_all(fds)

    def _shadowed(self, template: TemplateProcess, folder: str) -> str:
        """Return why a program in a folder would import others than the template did; empty text if it would not."""
        facts = template.facts
        assert facts is not None
        for each in (folder, *facts["paths"]):
            found = shadow(each, facts["tops"], facts["missing"], facts["suffixes"])
            if found is not None:
                return f"{found} comes before a module of the template"
        return ""

    def _forked(self, template: TemplateProcess, message: Message, fds: list[int]) -> None:
        start: Start = template.pending.popleft()
        if template is self._template:
            self._fork_next(template)
        if message["op"] == "refused":
            start.verdict = message["why"]
            self._refuse(start)
            return
        start.pid, start.pidfd = message["pid"], fds[0]
        self._by_pid[start.pid] = start
        if start.gone:
            self._kill(start)
        else:
            self._answer(start)

    def _answer(self, start: Start) -> None:
        """Let the caller begin, once it is known that there is a fork and that it may be used."""
        if start.verdict:
            self._refuse(start)
        elif start.pid and start.verdict is not None:
            assert self._template is not None
            assert self._template.facts is not None
            facts = {"modules": self._template.facts["count"], "left_out": self._left_out, "failed": self._failed}
            self._send(start, {"op": "ready", "pid": start.pid, **facts}, [start.pidfd])

    def _refuse(self, start: Start) -> None:
        self._send(start, {"op": "refused", "why": start.verdict})

    def _send(self, start: Start, message: Message, fds: list[int] = []) -> None:  # noqa: B006 - never changed
        if not start.gone:
            with contextlib.suppress(TrimsError, OSError):
                messages.send(start.conn, message, fds, long=True)

    def _caller_gone(self, start: Start) -> None:
        self._unwatch(start.conn.fileno())
        del self._starts[start.conn.fileno()]
        start.conn.close()
        start.gone = True
        if start.pid:
            self._kill(start)

    def _end_start(self, start: Start) -> None:
        if not start.gone:
            self._caller_gone(start)

    def _kill(self, start: Start) -> None:
        """Kill a program whose caller is gone, and all that it has started in its group."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(start.pidfd, signal.SIGSTOP)  # so that the number stays its own
            os.killpg(start.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(start.pidfd, signal.SIGKILL)

    # -- ends ------------------------------------------------------------------------------------------------------

    def _report(self, pid: int, message: Message) -> None:
        start = self._by_pid.get(pid)
        if start is not None:
            self._send(start, message)

    def _report_end(self, pid: int, status: int) -> None:
        start = self._by_pid.pop(pid, None)
        if start is not None:
            start.pid = 0
            os.close(start.pidfd)
            self._send(start, {"op": "ended", "status": status})

    def _woken(self, reads: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            reads.recv(1 << 12)
        self._reap()

    def _reap(self) -> None:
        """Report on programs whose template has ended, and bury what programs have left."""
        templates = {each.child.pid for each in (self._template, self._coming) if each is not None}
        options = os.WEXITED | os.WSTOPPED | os.WNOHANG
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, options | os.WNOWAIT):
                if found.si_pid in templates:
                    return  # its socket has ended, too, which is heard next; `_drop` comes back here
                os.waitid(os.P_PID, found.si_pid, options)
                if found.si_code == os.CLD_STOPPED:
                    self._report(found.si_pid, {"op": "stopped", "signal": found.si_status})
                else:
                    exited = found.si_code == os.CLD_EXITED
                    self._report_end(found.si_pid, found.si_status if exited else -found.si_status)


def _is_within(name: str, packages: tuple[str, ...]) -> bool:
    """Return whether a module is one of these, or lies in one."""
    return any(name == each or name.startswith(f"{each}.") for each in packages)


def main() -> None:
    """Entry: the arguments are descriptors of the plan, the session, the memory for names, and the program."""
    plan_fd, session, names, program = (int(number) for number in sys.argv[1:5])
    for fd in (plan_fd, session, names, program):
        os.set_inheritable(fd, False)
    with open(plan_fd) as file:
        plan: dict[str, Any] = json.load(file)
    memory = mmap.mmap(names, MEMORY_BYTES)
    os.close(names)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    adopt()
    door = Door(socket.socket(fileno=session), greeted=True)
    Host(plan, door, memory, program).run()
