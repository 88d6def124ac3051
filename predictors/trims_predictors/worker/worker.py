"""The predictor's process: it loads a model when asked, then answers one request after the other until its socket ends.

It begins in a fork of a template, or as a program of its own where a fork is not possible. The other side is the
supervisor (`pool`). Messages:

    {"op": "prepare", ...}  connect to the daemon and warm the framework up, before it is known for which model
    {"op": "load", ...}     open the weights and make the predictor ready -> {"op": "loaded", ...}
    {"op": "rehearse", ...} do what a first run does, with zeros of these shapes -> {"op": "rehearsed"}
    {"op": "warm", ...}     load and rehearse on a device, and keep its context alone -> {"op": "warmed", ...}
    {"op": "check"}         look whether that context still works -> {"op": "checked"}
    {"op": "park"}          give the lease and the memory of the weights back until they are needed -> {"op": "parked"}
    {"op": "wake", ...}     take them again, if they are the same -> {"op": "woken", ...}
    {"op": "predict", ...}  answer one request -> {"op": "answer", ...}
    {"op": "stop", ...}     end the run of this request early, if the predictor can; nothing answers that
    {"op": "share", ...}    compute the rest of this run with so many threads; nothing answers that
    {"op": "unload"}        give everything up and end

Of a request that streams, parts of its answer come before it: {"op": "part", ...}.

Each message but the last has a number, `request`, which its answer repeats: nothing else that is written to the socket
is taken for the answer.

What goes wrong in all but the last is answered by {"op": "failed", "code": ..., "message": ...}. The traceback of an
error that is not of trims's tree goes to standard error, and its class, message and place are in `raised`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import select
import signal
import socket
import sys
import weakref
from typing import TYPE_CHECKING, Any

from trims_client.forks import adapt_in_children

from trims.core.errors import BadMessageError, LostPeerError, PredictorError, TrimsError
from trims.manifests.serving import check_tensors
from trims.process import messages
from trims.process.forks import fork_count, parent_only
from trims.process.lifeline import depend_on, end_group
from trims.process.subreaper import adopt
from trims.trace.children import BEGINS, Reporter, apart
from trims.trace.levels import Level
from trims.trace.spans import is_recording, records
from trims_predictors.api import Context
from trims_predictors.frameworks import HANDLER, threads
from trims_predictors.ipc.shared_buffers import Receiver, Sender
from trims_predictors.malloc import keep_memory, take_ahead
from trims_predictors.tensors import describe, to_array, types_of
from trims_predictors.trace_context import handed_on
from trims_predictors.tracebacks import traceback_of
from trims_predictors.transforms.pipeline import Pipeline, Stages, pipeline_of
from trims_predictors.worker.failures import blamed, confinement, failed, lacks_device_memory, no_device_memory
from trims_predictors.worker.new_imports import count_of_modules, importable_since
from trims_predictors.worker.parts import Parts
from trims_predictors.worker.prefault import Record, copy_ahead
from trims_predictors.worker.rlimits import limit_memory, words_of_limit
from trims_predictors.worker.start import begin

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from trims_client import Session
    from trims_client.mapping.suspended import Suspended
    from trims_client.weights import Weights

    from trims.manifests.serving import TensorType
    from trims.wire.frames import Message
    from trims_predictors.api import Arrays
    from trims_predictors.tensors import Tensor

#: Folder for temporary files in a namespace (see `Isolation.scratch_bytes`).
_SCRATCH = "/dev/shm"  # noqa: S108 - it is the namespace's own
#: Bytes that models of some hundred megabytes take for one run beside their weights: a ResNet-50 22 MB, a GPT-2 25 MB.
_AHEAD_BYTES = 32 << 20


class Worker:
    """Carries out what its socket says.

    Args:
        sock: Socket to the supervisor.
        runtime_dir: Folder of the daemon's sockets.
        keeps_memory: The allocator keeps what is freed, so that memory may be taken ahead.
        confined: Whether it is in a namespace, which its errors may come from.
    """

    def __init__(
        self, sock: socket.socket, runtime_dir: str, *, keeps_memory: bool = False, confined: bool = False
    ) -> None:
        self._sock = sock
        self._runtime_dir = runtime_dir
        self._keeps_memory = keeps_memory
        self._confined = confined
        #: Bytes of its own that the predictor may take; None for no limit.
        self._memory_bytes: int | None = None
        self._session: Session | None = None
        self._weights: Weights | None = None
        self._pipeline: Pipeline | None = None
        self._place: str | None = None
        #: Threads of the frameworks here, as they were set last.
        self._threads = 0
        self._parked: Suspended | None = None
        #: Inputs of the last run as the supervisor knows them.
        self._reported: tuple[TensorType, ...] = ()
        #: Record of the pages that are written until the first answer; None for no record.
        self._record: Record | None = None
        self._spans = Reporter()
        self._inbox = Receiver()
        self._instructions = Sender()
        self._unannounced: int | None = None
        #: Inputs are copied out of the arena, because code of the model has kept some beyond its run.
        self._copies = False
        #: The supervisor has let go while a run went on.
        self._released = False
        self._own = os.getpid()
        self._arrivals = select.poll()
        self._arrivals.register(sock, select.POLLIN)
        adapt_in_children(self)
        #: Arrays over the arena that the last request was given as.
        self._lent: list[weakref.ref[np.ndarray[Any, Any]]] = []

    def serve(self) -> bool:
        """Answer until the other side is gone or says `unload`; True if it said that."""
        operations: dict[str, Callable[[Message], tuple[Message, int | None]]] = {
            "prepare": self._prepare,
            "load": self._load,
            "rehearse": self._rehearse,
            "warm": self._warm,
            "check": self._check,
            "park": self._park,
            "wake": self._wake,
            "predict": self._predict,
        }
        asked_to_end = False
        with contextlib.suppress(LostPeerError):
            while (received := self._receive()) is not None:
                message, fds = received
                for fd in fds:
                    self._inbox.take(fd)
                operation = message.get("op")
                if operation in ("stop", "share"):
                    continue  # its run has ended by itself meanwhile
                if operation == "unload":
                    asked_to_end = True
                    break
                self._carry_out(operations[str(operation)], message)
                if self._released:
                    asked_to_end = True
                    break
        self._unload()
        return asked_to_end

    def after_fork(self) -> None:
        """Let go of the supervisor's socket in a child of this process, such as one forked by a signal handler."""
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self._sock.fileno())
        os.close(nothing)

    def _receive(self) -> tuple[Message, list[int]] | None:
        """The next message. A child that was forked meanwhile ends here, and takes none of its parent's messages."""
        with parent_only(self._own):
            self._arrivals.poll()  # so that a child which code below Python forks is noticed before it takes a message
        with parent_only(self._own):
            return messages.receive(self._sock)

    def _carry_out(self, operation: Callable[[Message], tuple[Message, int | None]], message: Message) -> None:
        fd: int | None = None
        forks = fork_count()
        try:
            with parent_only(self._own), self._spans.recorded(message):
                answer, fd = operation(message)
        except TrimsError as error:
            answer = self._with_device(failed(error, self._limit_met(error)))
        except BaseException as error:  # noqa: BLE001 - such as KeyboardInterrupt; the supervisor gets it
            sys.stderr.write(traceback_of(error))
            answer = self._with_device(self._failed(message, error))
        answer = self._spans.add(message, answer)
        with parent_only(self._own):
            self._answer(message, answer, fd, forked=fork_count() != forks)

    def _failed(self, message: Message, error: BaseException) -> Message:
        """Return the message about an error of the model's code, or of a library that it calls."""
        if self._weights is not None and self._weights.device is not None and lacks_device_memory(error):
            threads.release_device_memory()
            return failed(no_device_memory(self._weights.place, error))
        remedy = self._limit_met(error) or (confinement(error) if self._confined else "")
        return failed(blamed(message, error), remedy, error)

    def _with_device(self, answer: Message) -> Message:
        """Report beside a failure that the device, or the context of it, is lost: this process can use it no more."""
        if "trims_client.mapping.device" not in sys.modules:
            return answer
        from trims_client.mapping.device import check_devices

        try:
            check_devices()
        except TrimsError as error:
            return {**answer, "lost": str(error)}
        return answer

    def _limit_met(self, error: BaseException) -> str:
        return words_of_limit(error, self._memory_bytes, _SCRATCH if self._confined else "")

    def _answer(self, message: Message, answer: Message, fd: int | None, *, forked: bool) -> None:
        common = {"request": message["request"], **self._kept_inputs(forked=forked)}
        answer, spans_fd = apart(answer)
        fds = [each for each in (fd, spans_fd) if each is not None]
        try:
            messages.send(self._sock, {**answer, **common}, fds)
        except BadMessageError as error:
            answer = failed(PredictorError(f"the answer has too many tensors: {error}"))
            messages.send(self._sock, {**answer, **common})
        finally:
            messages.close_all(fds)

    def _kept_inputs(self, *, forked: bool) -> Message:
        """Return what the supervisor must know if the model's code may still read or write the last inputs.

        A thread that finishes late, or a child that was forked, has them still: the next request must lie in other
        memory. From then on this process copies inputs before the model's code sees them.
        """
        lent, self._lent = self._lent, []
        if self._copies or not (forked or any(array() is not None for array in lent)):
            return {}
        self._copies = True
        return {"kept_inputs": True}

    # -- operations ------------------------------------------------------------------------------------------------

    def _prepare(self, message: Message) -> tuple[Message, None]:
        """Do what does not depend on the model: threads, warm code paths, the connection to the daemon.

        A worker that was not forked imports here what a template would have imported.
        """
        for module in message["modules"] if message["import"] else ():
            with contextlib.suppress(Exception):  # a model that needs it imports it again; its client gets the error
                importlib.import_module(module)
        self._threads = int(message["threads"])
        threads.warm_up(message["modules"], self._threads)
        if threads.are_among(message["modules"]) and self._keeps_memory:
            take_ahead(_AHEAD_BYTES)
        self._connect()
        copy_ahead(message["pages"])
        self._record = Record.begin()
        return {"op": "prepared"}, None

    def _connect(self) -> Session:
        if self._session is None:
            from trims_client import connect

            self._session = connect(self._runtime_dir, agent="predictor")
        return self._session

    def _load(self, message: Message) -> tuple[Message, None]:
        before, stages = count_of_modules(), Stages()
        os.environ.update(message["variables"])
        context = _context(message)
        if not message.get("record"):
            self._record = None
        if message.get("memory_bytes") is not None:
            self._memory_bytes = int(message["memory_bytes"])
            limit_memory(self._memory_bytes)
        if "alone" not in message:
            with stages.timed("connect_s"):
                session = self._connect()
            with stages.timed("open_s"):
                self._weights = self._opened(session, message)
        there = threads.sharing()
        self._share(context.threads)  # before the model's code is imported, which may choose another number
        with stages.timed("import_s"):
            pipeline = self._pipeline = pipeline_of(message, context)
        if threads.sharing() != there:
            threads.share_threads(0, context.threads)
        with stages.timed("load_s"):
            pipeline.load(self._weights)
        return {
            "op": "loaded",
            "inputs": pipeline.inputs(),
            "outputs": pipeline.outputs(),
            **_where(self._weights),
            "stages": stages.seconds,
            "imported": importable_since(before, os.path.dirname(message["call"]) if message["how"] == HANDLER else ""),
            "stops": pipeline.can_stop,
        }, None

    def _opened(self, session: Session, message: Message) -> Weights:
        """The weights by their name; of a predictor that is made ahead of need, only where they are resident."""
        self._place, image = message["place"], message.get("image")
        name = str(message.get("opens") or message["model"])
        if image:
            from trims_client.mapping.suspended import open_resident

            return open_resident(session, name, *image)
        return session.open(name, place=self._place, deadline_s=message["deadline_s"])

    def _rehearse(self, message: Message) -> tuple[Message, None]:
        """Do what a first run does, so that the first request finds it done."""
        assert self._pipeline is not None, "rehearse before load"
        check_tensors(given := types_of(message["given"]), "given")
        outputs = self._pipeline.rehearse(given)
        if outputs:  # the next answer finds an arena of its size, in memory that is there already
            fd = self._instructions.write(self._pipeline.tensors(outputs))[1]
            if fd is not None:
                self._keep_unannounced(fd)
        return {"op": "rehearsed"}, None

    def _keep_unannounced(self, fd: int | None) -> None:
        """Keep the descriptor of an arena that the other side does not know yet, in the place of the last one."""
        before, self._unannounced = self._unannounced, fd
        if before is not None:
            os.close(before)

    def _warm(self, message: Message) -> tuple[Message, None]:
        """Have the context of the device where weights lie, and what a first run there loads; then hold no weights.

        `free` says whether the lease was given back, which code that keeps tensors prevents.
        """
        from trims_client.mapping.suspended import let_go

        imported: list[str] = []
        if message["builds"]:
            imported = self._load(message)[0]["imported"]
        else:
            self._weights = self._opened(self._connect(), message)
        assert self._weights is not None, "it was opened"
        if message["builds"] and message["given"]:
            self._rehearse(message)
        else:
            threads.warm_up_on_device(self._weights)
        if self._pipeline is not None:
            self._pipeline.unload()
        weights, self._weights, self._pipeline = self._weights, None, None
        free = let_go(self._connect(), weights)
        threads.release_device_memory()
        return {"op": "warmed", "free": free, "imported": imported}, None

    def _check(self, message: Message) -> tuple[Message, None]:
        """Raise DeviceLostError if a context that this process has does not work any more."""
        from trims_client.mapping.device import check_devices

        del message
        check_devices()
        return {"op": "checked"}, None

    def _park(self, message: Message) -> tuple[Message, None]:
        """Wait for a first request without a lease on the weights."""
        from trims_client.mapping.suspended import Suspended

        del message
        assert self._weights is not None, "park before load"
        self._parked = Suspended(self._connect(), self._weights, self._place)
        return {"op": "parked"}, None

    def _wake(self, message: Message) -> tuple[Message, None]:
        """Have the weights again if the model still is what was loaded; `same` says it."""
        from trims_client.mapping.suspended import still_current

        assert self._weights is not None, "wake before load"
        stages = Stages()
        with stages.timed("open_s"):
            if self._parked is None:
                same = still_current(self._connect(), self._weights, self._place)
            else:
                same = self._parked.wake(message["deadline_s"])
        found = {"place": self._weights.place, "warm": self._weights.warm, "stages": stages.seconds}
        return {"op": "woken", "same": same, **found}, None

    def _predict(self, message: Message) -> tuple[Message, int | None]:
        assert self._pipeline is not None, "predict before load"
        traced = is_recording()
        stages = Stages(bare=not traced or not records(Level.FRAMEWORK))
        self._share(int(message.get("threads", self._threads)))
        with stages.timed("input_s"):
            inputs = {tensor.name: self._input(tensor) for tensor in self._inbox.read(message["inputs"])}
        with handed_on(message.get("context")):
            outputs = self._run(inputs, stages, message)
        with stages.timed("output_s"):
            described, fd = self._instructions.write(self._pipeline.tensors(outputs))
        if fd is None:
            fd, self._unannounced = self._unannounced, None
        else:
            self._keep_unannounced(None)
        answer = {"op": "answer", "outputs": described, "stages": stages.seconds, **self._news(self._pipeline.given)}
        return {**answer, BEGINS: stages.begins_ns} if traced and stages.bare else answer, fd

    def _run(self, inputs: Arrays, stages: Stages, message: Message) -> Arrays:
        """Run the pipeline. A run that can end early looks for the supervisor's word while it goes on."""
        assert self._pipeline is not None
        wanted = message.get("wanted", ())
        if not self._pipeline.can_stop:
            return self._pipeline.run(inputs, stages, wanted)
        parts = Parts(self._sock, message["request"], self._own, self._share, wanted=bool(message.get("stream")))
        try:
            return self._pipeline.run(inputs, stages, wanted, parts)
        finally:
            self._released = parts.ended

    def _input(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """Return the array that the model's code is given: over the arena, or private (see `_kept_inputs`)."""
        array = to_array(tensor)
        if self._copies:
            return array.copy()
        self._lent.append(weakref.ref(array if array.base is None else array.base))  # the base of every view of it
        return array

    def _share(self, count: int) -> None:
        """Have frameworks compute with so many threads, if they can change it between two runs."""
        before, self._threads = self._threads, count
        if count != before:
            threads.share_threads(before, count)

    def _news(self, given: tuple[TensorType, ...]) -> Message:
        """Return facts that the supervisor does not know yet.

        These are the inputs that a predictor which can rehearse got, if they differ from those reported last; and once
        the pages that were written, if they are recorded.
        """
        news: Message = {}
        if given != self._reported:
            self._reported = given
            news["given"] = describe(given)
        if self._record is not None:
            news["pages"] = self._record.end()
            self._record = None
        return news

    def _unload(self) -> None:
        """Give everything up, in order; what the predictor raises is its own affair, the process ends anyway."""
        if self._pipeline is not None:
            with contextlib.suppress(Exception):
                self._pipeline.unload()
        self._pipeline = None
        if self._weights is not None:
            self._weights.close()
        if self._session is not None:
            self._session.close()
        self._keep_unannounced(None)


def _where(weights: Weights | None) -> Message:
    """Return where weights lie, whether they were there before, and their image; nothing of a model loaded alone."""
    from trims_client.mapping.suspended import image_of

    if weights is None:
        return {"place": "", "warm": False, "image": []}
    return {"place": weights.place, "warm": weights.warm, "image": list(image_of(weights))}


def _context(message: Message) -> Context:
    return Context(
        model=message["model"],
        version=message["version"],
        options=message["options"],
        attributes=message["attributes"],
        inputs=types_of(message["inputs"]),
        outputs=types_of(message["outputs"]),
        threads=int(message["threads"]),
        max_batch_size=int(message["batch"]),
    )


def run(sock: socket.socket, lifeline: int, runtime_dir: str, *, confined: bool) -> bool:
    """Be a predictor's process, until the supervisor lets go of it, which returns True, or ends."""
    depend_on(lifeline)
    adopt()
    keeps_memory = keep_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the supervisor ends its predictors itself
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what it printed is passed on also if it is killed
    return Worker(sock, runtime_dir, keeps_memory=keeps_memory, confined=confined).serve()


def main() -> None:
    """Entry where a fork is not possible: a program of its own.

    If the supervisor ends, what the predictor has started ends here: there is no template that would end it.
    """
    options = begin()
    sock = socket.socket(fileno=options.socket)
    if not run(sock, options.lifeline, options.runtime_dir, confined=bool(options.writable)):
        end_group()


if __name__ == "__main__":
    main()
