"""Parts of an answer, sent to the supervisor while the run goes on, and the supervisor's order to stop the run."""

from __future__ import annotations

import base64
import select
from typing import TYPE_CHECKING

from trims.core.errors import BadMessageError, PredictorError
from trims.process import messages
from trims.process.forks import parent_only
from trims_predictors.tensors import from_array

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from trims.wire.frames import Message
    from trims_predictors.api import Arrays


class Parts:
    """Sender of the parts of one answer.

    Args:
        sock: Socket to the supervisor. While a run goes on, it says `stop` there, or lets go.
        wanted: Whether parts are to be sent.
        own: Number of this process.
        share: Has frameworks compute with so many threads; the supervisor may ask for that while a run goes on.

    Attributes:
        ended: The supervisor has let go: the process ends after this run.
    """

    def __init__(
        self, sock: socket.socket, request: str, own: int, share: Callable[[int], None], *, wanted: bool
    ) -> None:
        self._sock, self._request, self._own, self._share = sock, request, own, share
        self.wanted = wanted
        self.ended = self._stopped = False
        self._arrivals = select.poll()
        self._arrivals.register(sock, select.POLLIN)

    def __call__(self, outputs: Arrays | None) -> bool:
        """Send a part, None for nothing. Return whether the client still waits for more. Raises PredictorError."""
        with parent_only(self._own):
            if outputs is not None and self.wanted and not self._stopped:
                self._send(outputs)
            while not self._stopped and self._arrivals.poll(0):
                self._hear()
        return not self._stopped

    def _send(self, outputs: Arrays) -> None:
        tensors = [from_array(name, each) for name, each in outputs.items()]
        described = [
            {
                "name": each.name,
                "dtype": each.dtype,
                "shape": list(each.shape),
                "data": base64.b64encode(each.data).decode(),
            }
            for each in tensors
        ]
        try:
            messages.send(self._sock, {"op": "part", "request": self._request, "outputs": described})
        except BadMessageError as error:
            raise PredictorError(f"a part of the answer is too large: {error}") from error

    def _hear(self) -> None:
        received = messages.receive(self._sock)
        message: Message = {"op": "unload"} if received is None else received[0]
        if received is not None:
            messages.close_all(received[1])
        if message.get("op") == "unload":
            self.ended = self._stopped = True
        elif message.get("op") == "stop" and message.get("request") == self._request:
            self._stopped = True
        elif message.get("op") == "share" and message.get("request") == self._request:
            self._share(int(message["threads"]))
