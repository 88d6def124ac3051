"""Handlers of functions, as a user has them in a file: `def handler(model, event)`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from trims.core.errors import CallerError

print("imported")
NUMBER = 3


def handler(model: Any, event: Any) -> dict[str, Any]:
    """Answer as a model of one weight."""
    print("asked")
    return {"y": float(model["factor"]) * event["x"], "pid": os.getpid()}


def names(model: Any, event: Any) -> list[str]:
    """The names of the weights, and what was asked."""
    return [*model, event]


def shown(model: Any, event: Any) -> str:
    """Return an object's members as Python shows them, also those that JSON cannot hold."""
    return repr(sorted(event.items()))


def name_form(model: Any, event: Any) -> str:
    """Return the name of the model's type."""
    return type(model).__name__


def fail(model: Any, event: Any) -> None:
    """Has a defect."""
    _helper()


def _helper() -> None:
    raise ZeroDivisionError("by hand")


def refuse(model: Any, event: Any) -> None:
    """Takes no event."""
    raise CallerError("it takes none of these")


def hang(model: Any, event: Any) -> None:
    """Never answers."""
    print("hangs", flush=True)
    time.sleep(600)


def die(model: Any, event: Any) -> None:
    """Ends its process."""
    os._exit(3)


def answer_bytes(model: Any, event: Any) -> bytes:
    """Return a value that JSON has no form for."""
    return b"bytes"


async def later(model: Any, event: Any) -> None:
    """Handle nothing: this is no plain function."""


def answer_nothing(model: Any, event: Any) -> None:
    """Return nothing."""


def hang_once(model: Any, event: str) -> str:
    """Never answer the first time, which leaves a file at the path of the event."""
    try:
        os.mkdir(event)
    except FileExistsError:
        return "at once"
    print("hangs", flush=True)
    time.sleep(600)
    return "late"


def meet(model: Any, event: str) -> list[str]:
    """Return the processes that answer at once: those of two events wait for each other in the folder of the event."""
    (Path(event) / str(os.getpid())).touch()
    until_s = time.monotonic() + 60
    while len(found := sorted(os.listdir(event))) < 2 and time.monotonic() < until_s:
        time.sleep(0.01)
    return found
