"""Failures of a predictor as messages to its supervisor."""

from __future__ import annotations

import errno
import re
import socket
from typing import TYPE_CHECKING

from trims.core.errors import NoSpaceError, PredictorError
from trims.core.functions import raised
from trims_predictors.tracebacks import format_error

if TYPE_CHECKING:
    from trims.core.errors import TrimsError
    from trims.wire.frames import Message

#: Characters of an error that reaches a client.
_MOST_LETTERS = 4000
#: Errors of code in a namespace that it would not get with the rights of its user; names that are not found, too.
_CONFINING = (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENETUNREACH, socket.EAI_AGAIN, socket.EAI_NONAME)
#: Errors of frameworks for which a device has no memory left: torch and cupy by their class, ONNX Runtime by its text.
_NO_DEVICE_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA(?: error)?: out of memory|CUDA failure 2\b|cudaErrorMemoryAllocation|"
    r"Failed to allocate memory for requested buffer"
)
_OF_NAMESPACES = (
    "its code runs in a namespace, where it has no network and writes temporary files only: `trims endpoint "
    "--isolation process` gives it the rights of the endpoint's user"
)


def failed(error: TrimsError, remedy: str = "", cause: BaseException | None = None) -> Message:
    """Return the message about an error, with what helps against it.

    Args:
        error: Error to report.
        remedy: Words for what helps; empty for none.
        cause: Exception of the model's code that it comes from, whose facts (`Raised`) are reported beside it.
    """
    ending = f"; {remedy}" if remedy else ""
    text = f"{str(error)[: _MOST_LETTERS - len(ending)]}{ending}".encode(
        errors="replace"
    ).decode()  # halves of surrogate pairs are no text
    message = {"op": "failed", "code": error.code, "message": text}
    return message if cause is None else {**message, "raised": [_sendable(each) for each in raised(cause)]}


def _sendable(fact: str | int) -> str | int:
    return fact.encode(errors="replace").decode() if isinstance(fact, str) else fact


def blamed(message: Message, error: BaseException) -> PredictorError:
    """Return the error of a message whose operation the model's code has failed in."""
    what = "could not load the model" if message.get("op") == "load" else f"failed in {message.get('op')}"
    words, place = format_error(error)[: _MOST_LETTERS * 3 // 4], raised(error).place
    return PredictorError(f"the predictor {what}: {words}{f' ({place})' if place else ''}")


def confinement(error: BaseException) -> str:
    """Return what of a namespace an error may come from; empty if it has nothing to do with that."""
    return _OF_NAMESPACES if isinstance(error, OSError) and error.errno in _CONFINING else ""


def lacks_device_memory(error: BaseException) -> bool:
    """Return whether a framework found no memory on its device."""
    return not isinstance(error, MemoryError) and bool(_NO_DEVICE_MEMORY.search(f"{type(error).__name__}: {error}"))


def no_device_memory(place: str, error: BaseException) -> NoSpaceError:
    """Return the error of a run or a load that found no memory on the device, with the framework's figures."""
    return NoSpaceError(
        f"{place} has no memory left for the work of this model: {format_error(error)[: _MOST_LETTERS // 2]}; "
        "send less at once, lower gpu_share or raise gpu_reserve_bytes in the daemon's configuration, or allow "
        "another place (place=gpu,cpu)"
    )
