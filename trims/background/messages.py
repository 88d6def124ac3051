"""Messages between a daemon and its copier: one request, one answer (see `trims.process.messages`).

Requests: `begin` (a task, with its descriptors), `go` (do as many bytes, at a bandwidth), `end` (send the digests and
let go of all), `drop` (let go of all). Each answer has the same fields. The list of parts may be long, so it travels as
a file in memory.
"""

from __future__ import annotations

import array
import os
from typing import TYPE_CHECKING, Any

from trims.background.task import Order, Part, SourceFailedError, Task
from trims.process import messages
from trims.trace.children import ask_for_spans

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

#: Files of one task, and descriptors of its message; the kernel takes 253.
MOST_FILES, MOST_FDS = 200, 202
_NUMBERS = 4


def send_order(connection: socket.socket, order: Order) -> None:
    """Send `begin`. Raises OSError, LostPeerError."""
    task, target = order.task, order.target
    numbers = array.array("Q")
    for part in task.parts:
        numbers.extend((part.begin, part.nbytes, part.file, part.offset))
    parts_fd = os.memfd_create("parts", os.MFD_CLOEXEC)
    try:
        with open(parts_fd, "wb", closefd=False) as parts:
            parts.write(numbers.tobytes())
        message = {
            "do": "begin",
            "nbytes": task.nbytes,
            "hashes": task.hashes,
            "large_pages": task.large_pages,
            "has_target": target is not None,
        }
        messages.send(
            connection, ask_for_spans(message), [parts_fd, *([] if target is None else [target]), *order.files]
        )
    finally:
        os.close(parts_fd)


def read_order(message: dict[str, Any], fds: Sequence[int]) -> Order:
    """Return the order that a `begin` message carries. The descriptors stay the caller's to close."""
    numbers = array.array("Q")
    parts_fd, *others = fds
    with open(parts_fd, "rb", closefd=False) as parts:
        parts.seek(0)
        numbers.frombytes(parts.read())
    found = [Part(*numbers[at : at + _NUMBERS]) for at in range(0, len(numbers), _NUMBERS)]
    task = Task(message["nbytes"], found, tuple(message["hashes"]), large_pages=message["large_pages"])
    return Order(task, others[1:], others[0]) if message["has_target"] else Order(task, others)


def failure(error: SourceFailedError | OSError) -> dict[str, Any]:
    """Return an answer that says what failed."""
    if isinstance(error, SourceFailedError):
        return {"failed": "source", "file": error.file, "at": error.at, "errno": error.errno}
    return {"failed": "target", "errno": error.errno, "words": str(error)}


def check(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer, if it is no failure. Raises SourceFailedError, OSError for a target."""
    failed = answer.get("failed")
    if failed == "source":
        raise SourceFailedError(answer["file"], answer["at"], answer["errno"])
    if failed == "target":
        raise OSError(answer["errno"], answer["words"])
    return answer
