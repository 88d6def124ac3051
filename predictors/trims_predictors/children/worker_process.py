"""A predictor's process as the supervisor sees it: asked one thing at a time, ended for sure.

What it answers is checked; what it does otherwise (hangs, crashes, lies, floods) costs itself alone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import signal
from typing import TYPE_CHECKING

from trims.core.errors import (
    BadMessageError,
    CallerError,
    CapacityError,
    DeadlineError,
    LostPeerError,
    PredictorError,
    from_code,
)
from trims.core.functions import raised_of
from trims.memory.shortage import names_memory
from trims.process.messages import close_all
from trims.trace.children import IN_FILE, ask_for_spans, take_spans, take_spans_in_file
from trims_predictors.children.launcher import format_status
from trims_predictors.ipc.connection import Peer
from trims_predictors.ipc.os_errors import as_trims_errors
from trims_predictors.ipc.shared_buffers import Receiver, Sender
from trims_predictors.tensors import COPIED_AT_ONCE_BYTES, Tensor
from trims_predictors.worker.prefault import check_pages
from trims_predictors.worker.rlimits import memory_words

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trims.core.errors import TrimsError
    from trims.process.lifeline import Lifeline
    from trims.wire.frames import Message
    from trims_predictors.children.launcher import Environment, Launcher
    from trims_predictors.ipc.output_pipes import Output
    from trims_predictors.worker.prefault import WrittenPages

    #: Takes the tensors of a part of an answer, and must not raise.
    OnPart = Callable[[Sequence[Tensor]], None]

#: Letters of a reason that a process gives.
_MOST_LETTERS = 400
#: Seconds between "unload" and SIGKILL.
_GRACE_S = 5.0
#: Seconds for which the status of a process that has gone is waited for: its reaper may get no processor before.
_STATUS_S = 20.0
#: Seconds between the end of its socket and that of a process.
_LAST_BREATH_S = 1.0


class PredictorProcess:
    """One process, from its start to its end.

    Args:
        pid: Number of the process, which leads a group of its own.
        pidfd: Pidfd of that process; closed at its end.
        how: `hot`, `device_spare`, `spare`, `forked` or `spawned`.
        tell_status: How the process ended, for people; asked once it has.
        lifeline: Lifeline of its group; closed at its end. None if nothing ties it to this process.
        pages: What forks of its template write; None if it is no fork.
        output: What it prints.

    Attributes:
        ended: Done when the process is gone; its result says how.
        going: Done before that, as soon as it is found to end.
    """

    def __init__(
        self,
        sock: socket.socket,
        pid: int,
        pidfd: int,
        how: str,
        format_status: Callable[[], Awaitable[str]],
        *,
        lifeline: Lifeline | None = None,
        pages: WrittenPages | None = None,
        output: Output | None = None,
    ) -> None:
        self.pid = pid
        self._output = output
        self.pages = pages
        self.how = how
        #: Memory of its own that it may take; None for no limit.
        self._memory_bytes: int | None = None
        self._pidfd = pidfd
        self._lifeline = lifeline
        self._status_words = format_status
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self.going: asyncio.Future[None] = self._loop.create_future()
        self._answer: asyncio.Future[Message] | None = None
        self._on_part: OnPart | None = None
        #: When the question was asked, or the last part of its answer came, on the loop's clock.
        self._heard_s = 0.0
        #: Number of the message that is to be answered. Code of a model cannot guess it, and no answer comes twice.
        self._request = ""
        self._instructions = Sender()
        self._inbox = Receiver()
        self._why_killed: str | None = None
        self._ending = False
        self._burial: asyncio.Future[None] | None = None
        self._peer = Peer(sock, self._heard, self._lost)
        self._loop.add_reader(pidfd, self._died)

    def answers(self, request: str) -> None:
        """Have what the process prints from now on name a request; empty for one without an id."""
        if self._output is not None:
            self._output.facts["request"] = request

    async def ask(
        self,
        message: Message,
        *,
        deadline_s: float | None,
        tensors: Sequence[Tensor] | None = None,
        on_part: OnPart | None = None,
    ) -> Message:
        """Have one thing done.

        Args:
            message: What; with tensors they are added to it as `inputs`.
            deadline_s: Seconds after which the process is killed, without an answer or a part of one.
            on_part: Takes parts of the answer before it, if there are any; None for a request that wants none.

        Returns:
            Its answer; `outputs` in it are tensors, with bytes of their own.

        Raises:
            DeadlineError: The time is over; the process ends.
            PredictorError: The process ended, or answered nonsense, which ends it.
            CapacityError: No descriptor or memory is left for the tensors.
            TrimsError: What it answered instead.
        """
        assert self._answer is None, "one thing at a time"
        self._note_work(message)
        self._answer, self._request = self._loop.create_future(), secrets.token_hex(8)
        self._on_part = on_part
        try:
            await self._send({**ask_for_spans(message), "request": self._request}, tensors)
            answer = _checked(await self._awaited(self._answer, deadline_s))
            take_spans(answer, self.pid, "predictor")
            if answer.get("kept_inputs"):
                self._instructions.close()  # the next request is written to an arena of its own
            if answer["op"] == "answer":
                answer["outputs"] = await self._own(self._inbox.read(answer["outputs"]))
        except asyncio.TimeoutError:
            self.kill(f"it took more than {deadline_s:g} s to {message['op']}")
            raise DeadlineError(
                f"the predictor took more than {deadline_s:g} s to {message['op']} and was ended"
            ) from None
        except LostPeerError as error:
            raise PredictorError(f"the predictor's process ended: {await self._end_of(str(error))}") from error
        except BadMessageError as error:
            self.kill(f"it answered nonsense: {error}")
            raise PredictorError(f"the predictor answered nonsense and was ended: {error}") from error
        except asyncio.CancelledError:
            self.kill("its request was cancelled")
            raise
        finally:
            self._forget_answer()
        if answer["op"] == "failed":
            if answer.get("lost"):
                self.kill(f"its context of a device is lost: {answer['lost']}"[:_MOST_LETTERS])
            raise _error_of(answer)
        return answer

    async def _awaited(self, answer: asyncio.Future[Message], deadline_s: float | None) -> Message:
        """The answer, if it or a part of it comes in time. Raises asyncio.TimeoutError."""
        self._heard_s = self._loop.time()
        while deadline_s is not None and not answer.done():
            left_s = self._heard_s + deadline_s - self._loop.time()
            done, _ = await asyncio.wait((answer,), timeout=max(0.0, left_s))
            if not done and self._loop.time() >= self._heard_s + deadline_s:
                raise asyncio.TimeoutError
        return await answer

    def _note_work(self, message: Message) -> None:
        """Remember what the process works on, for what it prints and for how it ends."""
        if self._output is not None:
            self._output.forget_last()
        if message["op"] in ("load", "warm"):
            self._memory_bytes = message.get("memory_bytes")
            if self._output is not None:
                self._output.facts["model"] = str(message["model"])

    def _forget_answer(self) -> None:
        answer, self._answer, self._on_part = self._answer, None, None
        if answer is not None and answer.done() and not answer.cancelled():
            answer.exception()  # an error that came before the question was awaited is reported; else asyncio logs it
        if self._burial is not None:
            self._inbox.close()

    async def _end_of(self, otherwise: str) -> str:
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(asyncio.shield(self.ended), _STATUS_S)
        return otherwise

    async def _send(self, message: Message, tensors: Sequence[Tensor] | None) -> None:
        if tensors is None:
            self._peer.send(message)
            return
        write = self._instructions.write
        large = sum(tensor.nbytes for tensor in tensors) > COPIED_AT_ONCE_BYTES
        with as_trims_errors("the request cannot be handed to its predictor"):
            described, fd = await asyncio.to_thread(write, tensors) if large else write(tensors)
        try:
            self._peer.send({**message, "inputs": described}, [] if fd is None else [fd])
        finally:
            if fd is not None:
                os.close(fd)

    @staticmethod
    async def _own(tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies that are checked: the predictor could change its arena while it is read."""

        def copy() -> list[Tensor]:
            made = [Tensor(each.name, each.dtype, each.shape, bytes(each.data)) for each in tensors]
            for each in made:
                each.check()
            return made

        try:
            large = sum(each.nbytes for each in tensors) > COPIED_AT_ONCE_BYTES
            return await asyncio.to_thread(copy) if large else copy()
        except CallerError as error:
            raise BadMessageError(str(error)) from error

    # -- what it does ----------------------------------------------------------------------------------------------

    def _heard(self, message: Message, fds: list[int]) -> None:
        if IN_FILE in message and fds:
            take_spans_in_file(fds.pop(), message.pop(IN_FILE), self.pid, "predictor")
        try:
            while fds:
                self._inbox.take(fds.pop())
        except BadMessageError as error:
            close_all(fds)
            self._break(error)
            return
        except CapacityError as error:  # not its fault, but the arena is lost
            close_all(fds)
            self._break(error)
            self.kill("this process had no descriptor left for its answer")
            return
        if self._answer is None or self._answer.done():
            self.kill("it spoke without being asked")
        elif message.get("request") != self._request:
            self._break(BadMessageError("it answered what was not asked"))
        elif message.get("op") == "part":
            self._take_part(message)
        else:
            self._answer.set_result(message)

    def _take_part(self, message: Message) -> None:
        try:
            if self._on_part is None:
                raise BadMessageError("it answered in parts, which were not asked for")
            self._on_part(part_of(message))
            self._heard_s = self._loop.time()
        except BadMessageError as error:
            self._break(error)

    def stop_run(self) -> None:
        """Have the run that goes on end early, if its predictor can. Never raises."""
        self._send_to_run({"op": "stop"})

    def share_threads(self, count: int) -> None:
        """Have the run that goes on compute with so many threads, if its predictor can. Never raises."""
        self._send_to_run({"op": "share", "threads": count})

    def _send_to_run(self, message: Message) -> None:
        if self._answer is not None and not self._answer.done():
            with contextlib.suppress(LostPeerError):
                self._peer.send({**message, "request": self._request})

    def _lost(self, why: str) -> None:
        self._break(LostPeerError(why))
        if not self._ending:  # it crashes, and the kernel reports how; or it goes on without us
            self._loop.call_later(_LAST_BREATH_S, self.kill, why)

    def _break(self, error: TrimsError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _died(self) -> None:
        self._release()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # what it has started goes with it
        self.going.set_result(None)
        self._burial = asyncio.ensure_future(self._reap())

    def _release(self) -> None:
        """Give back the descriptors."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._peer.close()
        self._instructions.close()
        if self._answer is None or not self._answer.done():  # else its tensors are still to be read
            self._inbox.close()
        if self._lifeline is not None:
            self._lifeline.close()

    async def _reap(self) -> None:
        status = await self._status_words()
        self.ended.set_result(self._why_killed or f"{status}{self._lack_of_memory()}")
        self._break(LostPeerError(self.ended.result()))

    def _lack_of_memory(self) -> str:
        """Return which limit of memory it has met, if what it printed last says that it has met one."""
        if self._output is None or not names_memory(self._output.last_words()):
            return ""
        return f" for lack of memory: {memory_words(self._memory_bytes)}"

    @property
    def dying(self) -> bool:
        """Return whether the process was killed or has ended."""
        return self._why_killed is not None or self._burial is not None

    # -- its end ---------------------------------------------------------------------------------------------------

    def kill(self, why: str) -> None:
        """End it now. Idempotent."""
        if self._burial is not None:
            return
        self._why_killed = self._why_killed or why
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def abandon(self) -> None:
        """Give up a process that stays though it was killed, such as one that waits for a disk. Idempotent."""
        if self._burial is None:
            self._burial = self._loop.create_future()
            self._release()
            self.going.set_result(None)
            self.ended.set_result("it stays, though it was killed")
            self._break(LostPeerError(self.ended.result()))

    async def end(self) -> str:
        """Have it give everything up and end; kill it if it does not. Returns how it ended."""
        self._ending = True
        try:
            self._peer.send({"op": "unload"})
        except LostPeerError:
            self.kill("it closed its socket")
        try:
            return await asyncio.wait_for(asyncio.shield(self.ended), _GRACE_S)
        except asyncio.TimeoutError:
            self.kill(f"it did not end within {_GRACE_S:g} s")
            return await self.ended


def spawn(launcher: Launcher, environment: Environment) -> PredictorProcess:
    """A new process that has imported nothing yet. Raises as `Launcher.start` does."""
    with as_trims_errors("no predictor can be started"), contextlib.ExitStack() as undo:
        started = launcher.start("trims_predictors.worker.worker", environment)
        child = started.child
        undo.callback(child.close)
        pidfd = child.watch()
        undo.pop_all()

    async def status() -> str:
        return format_status(child.reap())

    return PredictorProcess(
        child.socket, child.pid, pidfd, "spawned", status, lifeline=child.lifeline, output=started.output
    )


#: Operation of an answer -> the fields that it must have, and of which type.
_FIELDS: Mapping[str, Mapping[str, type]] = {
    "prepared": {},
    "loaded": {"inputs": list, "outputs": list, "place": str, "warm": bool, "stages": dict, "imported": list},
    "rehearsed": {},
    "warmed": {"free": bool, "imported": list},
    "checked": {},
    "parked": {},
    "woken": {"same": bool, "place": str, "warm": bool, "stages": dict},
    "answer": {"outputs": list, "stages": dict},
    "failed": {"code": str, "message": str},
}


def part_of(message: Message) -> list[Tensor]:
    """Return the tensors of a part of an answer, checked. Raises BadMessageError: a predictor may send anything."""
    try:
        made = [
            Tensor(
                str(each["name"]),
                str(each["dtype"]),
                tuple(int(length) for length in each["shape"]),
                base64.b64decode(each["data"], validate=True),
            )
            for each in message["outputs"]
        ]
        for each in made:
            each.check()
    except (KeyError, TypeError, ValueError, CallerError) as error:
        raise BadMessageError(f"a part of an answer that is none: {error!r:.200}") from error
    return made


def _checked(answer: Message) -> Message:
    """An answer as far as its form goes. Raises BadMessageError: a predictor's process may say anything."""
    fields = _FIELDS.get(str(answer.get("op")))
    if fields is None or not all(isinstance(answer.get(name), kind) for name, kind in fields.items()):
        raise BadMessageError(f"a message of the form {sorted(answer)}, op {answer.get('op')!r:.40}")
    if not all(isinstance(seconds, float) for seconds in answer.get("stages", {}).values()):
        raise BadMessageError("stages that are no seconds")
    if not all(isinstance(each, dict) for name in ("inputs", "outputs", "given") for each in answer.get(name, ())):
        raise BadMessageError("tensors that are not described")
    check_pages(answer.get("pages", []))
    return answer


def _error_of(answer: Message) -> TrimsError:
    """Return the error that a process answers with, and what its code raised, if it says that."""
    # JSON can spell halves of characters, which no protocol of ours can send on.
    error = from_code(answer["code"], answer["message"].encode("utf-8", "replace").decode())
    if isinstance(error, PredictorError):
        error.raised = raised_of(answer.get("raised"))
    return error
