"""A template as the endpoint sees it: a process that has imported a framework and forks predictors on demand."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from typing import TYPE_CHECKING, Any

from trims.core.errors import LostPeerError, PredictorError
from trims.process import messages
from trims.process.scheduling_class import BACKGROUND, CHANGE_PAUSE_S, weigh
from trims.trace.children import take_spans
from trims_predictors.children.launcher import format_status
from trims_predictors.children.worker_process import PredictorProcess
from trims_predictors.ipc.connection import Peer
from trims_predictors.worker.prefault import WrittenPages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims.wire.frames import Message
    from trims_predictors.children.launcher import Environment, Launcher

_log = logging.getLogger(__name__)
#: Seconds to import a framework; the first time after a start of the machine reads it from the disk.
_IMPORT_S = 300.0
#: Seconds for which a template that is not ready gives way: meanwhile each new predictor imports the modules itself.
_GIVES_WAY_S = 10.0
_FORK_S = 5.0
#: Seconds between the end of a predictor and its template's word of it.
_STATUS_S = 10.0
#: Seconds to read the template's last words about a predictor, once the template is gone.
_LAST_WORDS_S = 0.1
#: Names of modules in one message.
_MODULES_AT_ONCE = 300


class Template:
    """One template's process.

    Args:
        modules: Modules to import at once.
        gives_way: No request waits for it: until it is ready it takes little of a processor that others want.

    Attributes:
        gone: Done when the process is gone.
    """

    def __init__(
        self, launcher: Launcher, environment: Environment, modules: Sequence[str], *, gives_way: bool = False
    ) -> None:
        self._launcher = launcher
        #: Identities of the files that were hidden from the template at its start.
        self.identities = launcher.identities()
        self._child = launcher.start("trims_predictors.worker.template", environment).child
        self.modules = frozenset(modules)
        #: Reason why the template, once ready, may not be forked; None if it may be.
        self.unfit: str | None = None
        #: Modules that it could not import, and why.
        self.failed: dict[str, str] = {}
        self.lost: str | None = None
        #: Niceness of its session.
        self._niceness = BACKGROUND if gives_way else 0
        self._retired = False
        self._pages = WrittenPages()
        #: Forks that are waited for.
        self._forking = 0
        self._answers: deque[asyncio.Future[tuple[Message, list[int]]]] = deque()
        self._statuses: dict[int, asyncio.Future[int]] = {}
        #: Processes as the template calls them, and as they are called here.
        self._living: dict[int, int] = {}
        self._pidfd, self._guard = -1, self._child.pid
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._peer = Peer(self._child.socket, self._heard, self._end)
        self.ready = asyncio.ensure_future(self._import(modules))
        self.ready.add_done_callback(_look_at)

    @property
    def pid(self) -> int:
        """Return the number of the template's process."""
        return pid_behind(self._pidfd, self._child.pid)

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the numbers of the template's process and its guard, which share pages; one number until both run."""
        return tuple(dict.fromkeys((self.pid, self._guard)))

    @property
    def predictors(self) -> frozenset[int]:
        """Processes that were forked from it and have not ended, spares among them."""
        return frozenset(self._living.values())

    @property
    def waited_for(self) -> bool:
        """Return whether it imports, or a fork is waited for."""
        return self._forking > 0 or not self.ready.done()

    async def _import(self, modules: Sequence[str]) -> None:
        """Have the template import modules, in batches of one message; a name too long for a message is skipped."""
        for begin in range(0, len(modules), _MODULES_AT_ONCE):
            some = list(modules[begin : begin + _MODULES_AT_ONCE])
            answer, _ = await self._ask({"op": "import", "modules": some}, (), _IMPORT_S)
            self.failed.update(answer["failed"])
            for module, why in answer["failed"].items():
                _log.debug("a template could not import %s: %s", module, why)
            self.unfit = answer["unfit"]
        self._give_way_no_more()

    def _give_way_no_more(self) -> None:
        if self._niceness:
            self._niceness = 0
            self._set_weight()

    def _set_weight(self) -> None:
        """Set the weight of its session; predictors have sessions of their own, with as much as any."""
        if self.lost is not None:  # else the number may be another process's
            return
        try:
            weigh(self.pid, self._niceness)
        except BlockingIOError:
            asyncio.get_running_loop().call_later(CHANGE_PAUSE_S, self._set_weight)
        except OSError as error:
            _log.debug("a template cannot give way: %s", error)

    async def fork(self) -> PredictorProcess:
        """A new predictor. Raises PredictorError if the template must not be forked, LostPeerError if it is gone."""
        self._forking += 1
        self._give_way_no_more()
        try:
            await asyncio.shield(self.ready)
            return await self._fork()
        finally:
            self._forking -= 1
            self._end_if_retired()

    async def _fork(self) -> PredictorProcess:
        with contextlib.ExitStack() as undo:
            ties = self._launcher.tie()
            undo.callback(ties.close)
            output = self._launcher.outputs.open("predictor")
            undo.callback(output.close)
            answer, fds = await self._ask({"op": "fork"}, (*ties.fds, output.fileno()), _FORK_S)
            take_spans(answer, self.pid, "template")
            if answer["op"] == "refused":
                raise PredictorError(f"the template cannot be forked: {answer['why']}")
            undo.pop_all()
        ties.given()
        output.given()
        pid = int(answer["pid"])
        here = int(answer["here"])
        output.whose = f"predictor {here}"
        return PredictorProcess(
            ties.socket, here, fds[0], "forked", lambda: self._status(pid),
            lifeline=ties.lifeline, pages=self._pages, output=output,
        )  # fmt: skip

    async def _ask(self, message: Message, fds: Sequence[int], deadline_s: float) -> tuple[Message, list[int]]:
        answer: asyncio.Future[tuple[Message, list[int]]] = asyncio.get_running_loop().create_future()
        self._peer.send(message, fds)
        self._answers.append(answer)
        try:
            return await asyncio.wait_for(asyncio.shield(answer), deadline_s)
        except asyncio.TimeoutError:
            self.close()
            raise LostPeerError(f"the template did not {message['op']} within {deadline_s:g} s") from None
        except asyncio.CancelledError:
            answer.add_done_callback(self._discard)
            raise

    def _heard(self, message: Message, fds: list[int]) -> None:
        if message["op"] == "ended":
            status = self._statuses.get(int(message["pid"]))
            if status is not None and not status.done():
                status.set_result(int(message["status"]))
            self._living.pop(int(message["pid"]), None)
            self._end_if_retired()
            return
        if message["op"] == "here":
            self._pidfd, guard = fds
            self._guard = pid_behind(guard, self._child.pid)
            os.close(guard)
            if self._niceness:
                self._set_weight()
                asyncio.get_running_loop().call_later(_GIVES_WAY_S, self._give_way_no_more)
            return
        answer = self._answers.popleft()
        if answer.done():
            messages.close_all(fds)
            return
        if message["op"] == "forked":  # now, because its end may be the next message
            pid = int(message["pid"])
            self._living[pid] = message["here"] = pid_behind(fds[0], pid)
            self._statuses[pid] = asyncio.get_running_loop().create_future()
        answer.set_result((message, fds))

    def _discard(self, answer: asyncio.Future[tuple[Message, list[int]]]) -> None:
        """Drop an answer, and how its predictor will end."""
        if not answer.cancelled() and answer.exception() is None:
            self._statuses.pop(int(answer.result()[0].get("pid", 0)), None)
        _drop(answer)

    async def _status(self, pid: int) -> str:
        """Return how a predictor ended. Only its template learns that, and reports it a moment later, if it lives."""
        status = self._statuses[pid]
        try:
            either: set[asyncio.Future[Any]] = {status, self.gone}
            await asyncio.wait(either, timeout=_STATUS_S, return_when=asyncio.FIRST_COMPLETED)
            if not status.done():
                await asyncio.wait({status}, timeout=_LAST_WORDS_S)  # what the template wrote before its end
            if status.done():
                return format_status(status.result())
            return "it ended, and so did its template, which alone could tell how"
        finally:
            del self._statuses[pid]

    def _end(self, why: str) -> None:
        self.close(why)

    def retire(self) -> None:
        """Keep it for as long as its predictors run, because it learns how they end, and until its last fork."""
        self._retired = True
        self._end_if_retired()

    def _end_if_retired(self) -> None:
        if self._retired and not self._living and not self._forking:
            self.close("it was retired")

    def close(self, why: str = "it was closed") -> None:
        """End it; its predictors live on. What waits for it gets LostPeerError. Idempotent."""
        if self.lost is not None:
            return
        self.lost = why
        self._peer.close()
        self._wait_for_end()  # before the kill, which may reap the process
        self._kill()
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(LostPeerError(f"the template is gone: {why}"))
                answer.add_done_callback(_drop)
        self._answers.clear()

    def end_all(self) -> None:
        """End it, its predictors, and whatever they have started and left. Idempotent."""
        self.close()
        self._child.lifeline.close()

    def _wait_for_end(self) -> None:
        """See to `gone`. The guard stays for as long as predictors live, which may be long."""
        loop, pidfd = asyncio.get_running_loop(), self._child.watch()

        def ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self._child.wait()
            self.gone.set_result(None)

        loop.add_reader(pidfd, ended)

    def _kill(self) -> None:
        """Kill the template alone. The end of the sandbox program round it would kill all predictors forked from it."""
        if self._pidfd < 0:
            self._child.lifeline.close()  # it has not begun, so it has none
            self._child.kill()
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        self._pidfd = -1


def pid_behind(pidfd: int, otherwise: int) -> int:
    """Return the number in this namespace of the process behind a descriptor; `otherwise` if the kernel hides it."""
    try:
        with open(f"/proc/self/fdinfo/{pidfd}") as file:
            told = next(line for line in file if line.startswith("Pid:"))
    except (OSError, StopIteration):
        return otherwise
    number = int(told.split()[1])
    return number if number > 0 else otherwise


def _look_at(ready: asyncio.Future[None]) -> None:
    """Mark the error of a template as seen: each caller that waits gets it, and asyncio need not log it."""
    if not ready.cancelled():
        ready.exception()


def _drop(answer: asyncio.Future[tuple[Message, list[int]]]) -> None:
    """Discard an answer that nothing waits for any more, and close the descriptors that came with it."""
    if not answer.cancelled() and answer.exception() is None:
        message, fds = answer.result()
        messages.close_all(fds)
        if message["op"] == "forked":
            _log.debug("a predictor that is not wanted any more was forked; it ends with its socket")
