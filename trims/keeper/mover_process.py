"""The mover as a process: the keeper starts it when an image is to be moved, and ends it when it has rested.

It holds the only context, so what goes wrong in one, such as an error that lasts until the process ends, costs the move
at which it shows, and none of the memory: that belongs to the keeper, which has no context. It ends with the keeper.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from trims.core.errors import BadMessageError, CapacityError, DeviceLostError, LostPeerError, NotSupportedError
from trims.memory.cuda.drivers import export_message
from trims.process import messages
from trims.process.child import Child, Ties, exit_words
from trims.process.child_environment import FRAMEWORKS, child_environment
from trims.process.python import run_module
from trims.trace.spans import traceparent
from trims.wire.answers import raise_if_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trims.keeper.moves import Move
    from trims.memory.cuda.drivers import Allocation, DeviceMemory
    from trims.wire.frames import Message

log = logging.getLogger(__name__)
#: Seconds without an answer after which a mover counts as hanging. Pinning the pages of a large file sends no progress,
#: so this is as long as the daemon waits.
SILENT_S = 300.0


class _Process:
    """One mover process. Raises CapacityError if it cannot be started."""

    def __init__(self, options: Sequence[str]) -> None:
        try:
            ties = Ties()
            command = run_module("trims.keeper.mover_main", *ties.arguments, *options)
            self._child = Child(command, ties, env=child_environment(FRAMEWORKS))
        except OSError as error:
            raise CapacityError(f"no process can be started to move images to the device: {error}") from error
        self.socket, self.pid = self._child.socket, self._child.pid
        self.socket.settimeout(SILENT_S)
        self.asked_to_end = False
        # Reap the process as soon as it has ended, killed or at rest, so that no zombie is left.
        self._reaper = threading.Thread(target=self._child.wait, name="trims-mover", daemon=True)
        self._reaper.start()

    @property
    def lives(self) -> bool:
        return self._child.status is None

    def ask_to_end(self) -> None:
        self.asked_to_end = True
        self.socket.close()

    def end(self) -> int:
        """Kill the process if it has not ended, and return its status. Idempotent."""
        self._child.kill()
        self._reaper.join()
        self._child.close()
        return self._child.reap()


class MoverProcess:
    """See `trims.keeper.moves.Moving`: moves images from a process of its own.

    Args:
        memory: The keeper's, which needs no context.
        cuda: Argument of `trims.memory.cuda.connect.connect`.
    """

    def __init__(self, memory: DeviceMemory, uuid: str, cuda: str) -> None:
        self._memory = memory
        self._uuid = uuid
        self._options = ("--device", uuid, "--cuda", cuda, "--driver", memory.name)
        self._process: _Process | None = None

    @property
    def awake(self) -> bool:
        """Return whether the process lives."""
        process = self._process
        return process is not None and process.lives

    @property
    def pid(self) -> int:
        """Return the number of the process that moves images now; 0 if there is none, or it is about to end."""
        process = self._process
        return process.pid if process is not None and process.lives and not process.asked_to_end else 0

    def move(self, move: Move, allocation: Allocation, on_progress: Callable[[int], None]) -> str:
        """See `Moving.move`.

        Raises LostPeerError if the process has died, or its context is lost and the device is not.
        """
        exported = self._memory.export(allocation)
        try:
            order = {
                "op": move.op,
                "nbytes": move.nbytes,
                "memory": export_message(exported),
                "expected": move.expected,
            }
            fds = [exported.fd]
            if move.source is not None:
                order["source"] = export_message(move.source)
                fds += [move.source.fd] if move.source.fd >= 0 else []
            elif move.fd >= 0:
                fds.append(move.fd)
            return str(self._asked(order, fds, on_progress).get("digest", ""))
        except DeviceLostError as error:
            self.close()
            self._check_device(error)
            raise LostPeerError(
                f"the context of the mover of {self._uuid} was lost during a {move.op}, and nothing else on the "
                f"device: ask again ({error})"
            ) from error
        finally:
            exported.close()

    def tidy(self) -> None:
        """See `Moving.tidy`: the process does so itself."""

    def rest(self) -> None:
        """See `Moving.rest`."""
        if self._process is not None and not self._process.asked_to_end:
            self._process.ask_to_end()

    def close(self) -> None:
        """See `Moving.close`."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _check_device(self, found: DeviceLostError) -> None:
        """Raise DeviceLostError if the device is lost, and not only a mover's context: ask the driver, here and there.

        A lack of memory says that the device is there.
        """
        with contextlib.suppress(CapacityError):
            self._memory.free(self._memory.allocate(1))
        try:
            self._asked({"op": "begin"}, (), lambda _: None)
        except (DeviceLostError, NotSupportedError) as error:
            self.close()
            raise DeviceLostError(f"{found}; nor can another process use the device: {error}") from error
        except (CapacityError, LostPeerError) as error:
            log.warning("whether %s is well cannot be told just now: %s", self._uuid, error)

    def _asked(self, order: Message, fds: Sequence[int], on_progress: Callable[[int], None]) -> Message:
        """Return the last answer to an order. Raises what it says, LostPeerError if the process is gone."""
        process = self._ready()
        context = traceparent()
        self._send(process, order if context is None else {**order, "traceparent": context}, fds)
        while "done_bytes" in (answer := self._next(process)):
            try:
                on_progress(answer["done_bytes"])
            except BaseException:  # the connection that waits for this move has ended
                self._send(process, {"op": "stop"})
                while "done_bytes" in self._next(process):
                    pass
                raise
        return raise_if_error(answer)

    def _ready(self) -> _Process:
        process = self._process
        if process is None or process.asked_to_end or not process.lives:
            self.close()
            self._process = process = _Process(self._options)
        return process

    def _send(self, process: _Process, message: Message, fds: Sequence[int] = ()) -> None:
        try:
            messages.send(process.socket, message, fds)
        except (LostPeerError, OSError) as error:
            raise self._lost(process, error) from error

    def _next(self, process: _Process) -> Message:
        try:
            received = messages.receive(process.socket)
        except TimeoutError as error:
            raise self._lost(process, f"it gave no sign of life for {SILENT_S:.0f} s") from error
        except (BadMessageError, OSError) as error:
            raise self._lost(process, error) from error
        if received is None:
            raise self._lost(process, "")
        return received[0]

    def _lost(self, process: _Process, why: object) -> LostPeerError:
        """End the process, so that it writes nowhere any more."""
        self._process = None
        words = exit_words(process.end())
        return LostPeerError(
            f"the mover {process.pid} of {self._uuid} {words}{f' ({why})' if why else ''}: "
            "the image is to be moved again, for which another mover starts"
        )
