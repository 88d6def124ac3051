"""The host of one template: has it made from a program's first run (see `making`), and starts programs from it.

One process for each program and environment, started by `trims exec` beside the first run, so it has the identity of
its callers. Its session at the daemon's attach door makes the template known; the daemon ends the template by ending
the session. Callers connect to the host itself, and hold a connection for as long as their program runs. If a caller
ends first, its program is killed. A template that is used no more stays the parent of its programs until they have
ended. If a template is killed, its programs are handed to the host, which reports how they end.
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
from trims.programs.freshness import shadow
from trims.programs.identity import identity_of, proof
from trims.programs.inside.observed import MEMORY_BYTES
from trims.programs.inside.protocol import LONG_BYTES, MOST_DESCRIPTORS
from trims.programs.making import Making, UnfitError
from trims.programs.settings import differences
from trims.wire.peer import Peer, PeerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.programs.freshness import Files
    from trims.programs.making import TemplateProcess
    from trims.wire.frames import Message

#: Seconds between two looks at an observed program's imports.
_LOOK_S = 0.5
#: Seconds that a template may take for a fork; callers wait longer.
_FORK_S = 3.0
#: Forks that a template is asked for at once, so that one that hangs holds few.
_MOST_PENDING = 2
_ACCEPT_PAUSE_S = 0.05
#: Modules that are reported to the daemon as left out.
_MOST_LEFT_OUT = 50


class Start:
    """One start of a program.

    Attributes:
        conn: Connection to the caller.
        nonce: What the caller must answer with a proof that it knows the template's token.
        plans: Socket to the fork, which reads there what it becomes; None before the caller has said hello.
        template: Template that forks.
        files: Files that it depends on.
        verdict: Why the fork must not be used; empty if it may be, None before that is known.
        leads: The caller leads its process group, so the fork does.
        pid: Number of the fork; 0 before there is one, and after its end.
        group: Process group of the fork.
    """

    def __init__(self, conn: socket.socket, caller: PeerProcess) -> None:
        self.conn, self.caller = conn, caller
        self.nonce = secrets.token_hex(16)
        self.leads = True
        self.plans: socket.socket | None = None
        self.template: TemplateProcess | None = None
        self.files: Files | None = None
        self.verdict: str | None = None
        self.pid = self.group = 0
        self.pidfd = -1
        self.gone = False


class Host:
    """Host of the template of one program.

    Args:
        plan: `interpreter`, `flags`, `environment`, `folder`, `working_folder` and `own` of the program, its `key`, the
            names of variables that no import should read (`unread`), `keep_alive_s`, `least_saving_s`, the callers'
            `token`, and the folders of our packages (`loaders`).
        door: Session at the daemon that has granted the making of this template.
        names: Memory in which the first run notes what it imports.
        program: Descriptor of that run (pidfd).
    """

    def __init__(self, plan: Message, door: Door, names: mmap.mmap, program: int) -> None:
        self._plan = plan
        self._door: Door | None = door
        self._making = Making(plan, names)
        self._program = program
        self._identity = identity_of()
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._template: TemplateProcess | None = None
        #: The template that is being made, as far as it is watched.
        self._watched: TemplateProcess | None = None
        self._watched_fd = -1
        #: Templates that fork no more, and have programs that run.
        self._old: list[TemplateProcess] = []
        self._files: Files | None = None
        self._listener: socket.socket | None = None
        self._starts: dict[int, Start] = {}
        #: Starts that the template was not asked for yet, and the sockets of their forks.
        self._waiting: deque[tuple[Start, socket.socket]] = deque()
        self._by_pid: dict[int, Start] = {}
        self._last_start_s = self._asked_s = time.monotonic()

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
            self._making.close()
            for template in (self._template, *self._old):
                if template is not None:
                    template.close()

    def _guarded(self, handler: Callable[[], None]) -> None:
        """Carry something out. If it fails, no more programs are started, and those that run have their host still."""
        try:
            handler()
            self._follow()
        except UnfitError as unfit:
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
        waits = self._template is None or self._making.coming is not None or self._template.pending
        return _LOOK_S * 1000 if waits else 5000

    def _tick(self) -> None:
        """Do what time brings: the end of a first run's imports, of patience, of a template that is not used."""
        now_s = time.monotonic()
        if now_s - self._asked_s > _FORK_S:
            for template in [each for each in self._old if each.pending]:
                self._end_template(template)  # it hangs
        if self._door is None:
            return
        self._making.leave_out_slow(now_s)
        if self._template is None:
            if self._making.coming is None and self._program >= 0:
                self._making.begin_when_quiet(now_s)
        elif self._template.pending and now_s - self._asked_s > _FORK_S:
            self._retire(hangs=True)
        elif not self._starts and now_s - self._last_start_s > self._plan["keep_alive_s"]:
            self._retire()

    # -- the daemon ------------------------------------------------------------------------------------------------

    def _hear_daemon(self) -> None:
        if self._door is not None and self._door.has_ended():
            self._retire()

    def _retire(self, *, hangs: bool = False) -> None:
        """Start no more programs; those that run go on.

        Args:
            hangs: The template does not answer, and holds what its callers have open: it is killed.
        """
        if self._door is not None:
            self._unwatch(self._door.sock.fileno())
            self._door.close()
            self._door = None
        if self._listener is not None:
            self._unwatch(self._listener.fileno())
            self._listener.close()
            self._listener = None
        self._making.close()
        self._follow()
        template, self._template = self._template, None
        if template is not None:
            for start in template.pending:
                start.verdict = "the template has ended"
                self._refuse(start)
            self._drop(template, hangs=hangs)
        while self._waiting:
            self._waiting.popleft()[1].close()
        for start in list(self._starts.values()):
            if not start.pid:
                self._end_start(start)

    def _report_unfit(self, why: str) -> None:
        if self._door is not None:
            with contextlib.suppress(TrimsError, OSError):
                self._door.ask({"op": "template", "key": self._plan["key"], "unfit": why[:1000]})

    def _announce(self) -> None:
        """Make the template known to the daemon, with what it takes. Raises UnfitError if there is no room for it."""
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
                "left_out": dict(list({**self._making.left_out, **self._making.failed}.items())[:_MOST_LEFT_OUT]),
            })  # fmt: skip
        except TrimsError as error:
            raise UnfitError(str(error)) from error
        except OSError:
            self._retire()

    # -- templates -------------------------------------------------------------------------------------------------

    def _observed_to_its_end(self) -> None:
        self._unwatch(self._program)
        os.close(self._program)
        self._program = -1
        if self._template is not None:
            self._making.read_first_run()
        elif self._making.coming is None:
            self._making.begin()

    def _follow(self) -> None:
        """Watch the template that is being made, if it is another one than before."""
        coming = self._making.coming
        if coming is self._watched:
            return
        if self._watched is not None and self._watched is not self._template:
            self._unwatch(self._watched_fd)
            self._reap()  # what its end may have kept from being buried
        self._watched = coming
        if coming is not None:
            self._watched_fd = coming.child.socket.fileno()
            self._watch(self._watched_fd, lambda: self._hear_template(coming))

    def _drop(self, template: TemplateProcess, *, hangs: bool = False) -> None:
        """End a template once it has no programs: until then it stays their parent, whose end they may depend on."""
        if self._template is not None:
            self._fork_next(self._template)  # it is the one after this
        self._old.append(template)
        if hangs or not self._has_programs(template):
            self._end_template(template)

    def _has_programs(self, template: TemplateProcess) -> bool:
        running = any(start.template is template for start in self._by_pid.values())
        return running or bool(template.pending)

    def _end_old(self) -> None:
        """End the templates that fork no more and have no programs any more."""
        for template in [each for each in self._old if not self._has_programs(each)]:
            self._end_template(template)

    def _end_template(self, template: TemplateProcess) -> None:
        """Kill a template; the forks that nothing has heard of yet end with their callers' connections."""
        self._old.remove(template)
        self._unwatch(template.child.socket.fileno())
        template.pending.clear()
        template.kill()
        with contextlib.suppress(BlockingIOError, BadMessageError):
            while received := template.receive():
                message, fds = received
                messages.close_all(fds)
                if message["op"] == "ended":  # before its template has
                    self._report_end(message["pid"], message["status"])
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
            self._take(message)
        elif op == "unfit":
            others, runs = message.get("others", []), self._program >= 0
            self._making.leave_out_culprit(message["modules"], message["why"], others, runs=runs)
        elif op in ("forked", "refused"):
            self._forked(template, message, fds)
        elif op == "stopped":
            self._report(message["pid"], {"op": "stopped", "signal": message["signal"]})
        elif op == "ended":
            self._report_end(message["pid"], message["status"])
            self._end_old()
            if self._door is not None:
                self._making.learn(message["modules"])

    def _lose(self, template: TemplateProcess) -> None:
        if template is self._making.coming:
            self._making.leave_out_last()
        elif template in self._old:
            self._end_template(template)
        else:
            self._retire(hangs=True)

    def _take(self, facts: Message) -> None:
        """Use the template that has imported in the place of the one before it."""
        made = self._making.take(facts)
        if made is None:
            return
        old = self._template
        self._template, self._files = made
        self._follow()
        if old is not None:
            self._drop(old)
        self._last_start_s = max(self._last_start_s, time.monotonic())
        self._announce()

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
        try:
            peer = Peer.of(conn)
            if peer.uid != os.geteuid():
                raise PermissionError
            caller = PeerProcess(conn, peer)
        except OSError:
            conn.close()
            return
        conn.setblocking(False)
        start = Start(conn, caller)
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
        try:
            if self._template is None:
                raise LostPeerError("the template has ended")
            if start.plans is None:
                self._greet(start, self._template, message)
            elif start.verdict is None:
                self._start(start, start.plans, message, fds)
        except (TrimsError, OSError) as error:
            start.verdict = str(error)
            self._refuse(start)
        except (KeyError, TypeError, ValueError) as error:
            start.verdict = f"the request of the caller cannot be read, install the same trims: {error!r}"
            self._refuse(start)
        finally:
            messages.close_all(fds)

    def _greet(self, start: Start, template: TemplateProcess, hello: Message) -> None:
        """Have the template fork for a caller, which prepares its plan meanwhile."""
        if hello["key"] != self._plan["key"]:
            raise LostPeerError("the caller means another program")
        identity = identity_of(start.caller.pid)
        start.caller.check()
        if identity != self._identity:
            raise LostPeerError("the caller is in another control group, namespace or sandbox, or has other rights")
        proven = proof(self._plan["token"], "host", hello["nonce"])
        self._last_start_s, start.leads = time.monotonic(), bool(hello["leads"])
        start.template, start.files = template, self._files
        start.plans, forks = messages.pair()
        self._waiting.append((start, forks))
        self._fork_next(template)
        self._send(start, {"op": "welcome", "proof": proven, "nonce": start.nonce})

    def _start(self, start: Start, plans: socket.socket, plan: Message, fds: list[int]) -> None:
        """Hand a plan to its fork, and look whether the fork may be used."""
        assert start.template is not None
        assert start.files is not None
        folder = plan["folder"]
        if not secrets.compare_digest(plan.pop("proof"), proof(self._plan["token"], "caller", start.nonce)):
            raise LostPeerError("the caller does not know this template's token")
        settings = differences(start.caller.pid)
        start.caller.check()
        with contextlib.suppress(LostPeerError):  # the template refuses or ends, which is heard next
            messages.send(plans, {**plan, **settings}, fds, long=True)
        plans.close()
        changed = start.files.changed()
        if changed is None:
            start.verdict = self._shadowed(start.template, folder)
            self._answer(start)
        else:
            start.verdict = f"{changed} has changed since the template was made"
            self._answer(start)
            self._retire()

    def _fork_next(self, template: TemplateProcess) -> None:
        """Have the template fork for those that wait, a few at a time: a message beyond those might have to wait."""
        while self._waiting and len(template.pending) < _MOST_PENDING:
            start, forks = self._waiting.popleft()
            with forks:
                if not start.gone:
                    messages.send(template.child.socket, {"op": "fork", "leads": start.leads}, [forks.fileno()])
                    template.pending.append(start)
                    self._asked_s = time.monotonic()

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
            self._end_old()
            return
        start.pid, start.group, start.pidfd = message["pid"], message["group"], fds[0]
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
            assert start.template is not None
            assert start.template.facts is not None
            made, modules = self._making, start.template.facts["count"]
            ready = {
                "op": "ready",
                "pid": start.pid,
                "group": start.group,
                "modules": modules,
                "left_out": made.left_out,
            }
            self._send(start, {**ready, "failed": made.failed}, [start.pidfd])

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
        start.caller.close()
        if start.plans is not None:
            start.plans.close()
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
            if (group := os.getpgid(start.pid)) in (start.group, start.pid):  # else it has gone to one of others
                os.killpg(group, signal.SIGKILL)
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
        known = (self._template, self._making.coming, *self._old)
        templates = {each.child.pid for each in known if each is not None}
        options = os.WEXITED | os.WSTOPPED | os.WNOHANG
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, options | os.WNOWAIT):
                if found.si_pid in templates:
                    return  # its socket has ended, too, which is heard next; `_drop` comes back here
                stopped = found.si_code == os.CLD_STOPPED
                os.waitid(os.P_PID, found.si_pid, os.WNOHANG | (os.WSTOPPED if stopped else os.WEXITED))
                if stopped:
                    self._report(found.si_pid, {"op": "stopped", "signal": found.si_status})
                else:
                    exited = found.si_code == os.CLD_EXITED
                    self._report_end(found.si_pid, found.si_status if exited else -found.si_status)


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
