"""`python -m trims.keeper.mover_main`: moves images of one device for its keeper, and ends when the keeper wants it to.

The context is made with the first order, so that what is wrong with it is the answer to that order. A lost context ends
the process.
"""

from __future__ import annotations

import argparse
import logging
import select
import socket
import sys
import time
from typing import TYPE_CHECKING

from trims.core.errors import DeviceLostError, InternalError, LostPeerError, TrimsError
from trims.keeper.moves import LocalMover, Move
from trims.logs import configure_child
from trims.memory.cuda.connect import connect
from trims.memory.cuda.drivers import device_memory, export_of
from trims.process import messages
from trims.process.lifeline import depend_on
from trims.trace import spans
from trims.wire.answers import error_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims.wire.frames import Message

log = logging.getLogger(__name__)
#: Least seconds between two messages of progress. A copy moves a chunk in a tenth of a millisecond.
_PROGRESS_S = 0.02
#: Seconds of quiet between two looks for segments that are gone.
_TIDY_S = 1.0


class _StoppedError(Exception):
    """The connection that waits for the move has ended."""


def main(arguments: list[str] | None = None) -> int:
    """Obey until the keeper closes its socket: 0, or 1 if the context was lost."""
    options = _parse(arguments)
    depend_on(options.lifeline)
    configure_child()
    spans.configure_from_environment("mover")
    with socket.socket(fileno=options.socket) as sock:
        try:
            _Orders(sock, options.cuda, options.device, options.driver).serve()
        except (LostPeerError, OSError) as error:
            log.debug("the mover ends: %s", error)
            return 1
        finally:
            spans.stop()
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trims-mover", description=__doc__)
    parser.add_argument("--socket", type=int, required=True, help="descriptor of the connection to the keeper")
    parser.add_argument("--lifeline", type=int, required=True, help="descriptor by which it ends with the keeper")
    parser.add_argument("--device", required=True, help="UUID of the GPU")
    parser.add_argument("--cuda", default="driver", help="`driver`, or a fake")
    parser.add_argument("--driver", default="vmm", help="how the keeper shares the memory")
    return parser.parse_args(arguments)


class _Orders:
    """The orders of one keeper."""

    def __init__(self, sock: socket.socket, cuda: str, uuid: str, driver: str) -> None:
        self._sock = sock
        self._cuda, self._uuid, self._driver = cuda, uuid, driver
        self._mover: LocalMover | None = None
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def serve(self) -> None:
        """Obey until the keeper is gone. Raises DeviceLostError once the context is lost."""
        while (received := self._next()) is not None:
            message, fds = received
            if message.get("op") == "stop":  # of a move that was done just then
                continue
            try:
                answer = self._answer(message, fds)
            except DeviceLostError as error:
                messages.send(self._sock, error_message(error, None))
                raise
            finally:
                messages.close_all(fds)  # before the answer: the memory may be freed with that
            messages.send(self._sock, answer)

    def _next(self) -> tuple[Message, list[int]] | None:
        while not self._poll.poll(_TIDY_S * 1000):
            if self._mover is not None:
                self._mover.tidy()
        return messages.receive(self._sock)

    def _answer(self, message: Message, fds: Sequence[int]) -> Message:
        try:
            with spans.continued(message.pop("traceparent", None)), spans.span(f"mover {message.get('op')}"):
                return self._obeyed(message, fds)
        except _StoppedError:
            return {"stopped": True}
        except DeviceLostError:
            raise
        except TrimsError as error:
            return error_message(error, None)
        except Exception as error:
            log.exception("an order failed")
            return error_message(InternalError(f"{type(error).__name__}: {error}"), None)

    def _obeyed(self, message: Message, fds: Sequence[int]) -> Message:
        if self._mover is None:
            cuda = connect(self._cuda)
            device = cuda.select(self._uuid)
            self._mover = LocalMover(cuda, device, device_memory(self._driver, cuda, device))
        if message.get("op") == "begin":
            with self._mover.context():
                return {}
        memory_fd, *others = fds
        other = others[0] if others else -1
        source = export_of(message["source"], other) if "source" in message else None
        move = Move(message["op"], message["nbytes"], -1 if source else other, source, message.get("expected", 0))
        progress = _Progress(self._sock, self._poll, move.nbytes)
        return {"digest": self._mover.move(move, export_of(message["memory"], memory_fd), progress)}


class _Progress:
    """Reports progress, not too often, and stops the move at the next message: a keeper sends one only to stop it."""

    def __init__(self, sock: socket.socket, poll: select.poll, nbytes: int) -> None:
        self._sock, self._poll, self._nbytes = sock, poll, nbytes
        self._next_s = 0.0

    def __call__(self, done: int) -> None:
        if self._poll.poll(0):
            raise _StoppedError
        if done == self._nbytes or time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _PROGRESS_S
            messages.send(self._sock, {"done_bytes": done})


if __name__ == "__main__":
    sys.exit(main())
