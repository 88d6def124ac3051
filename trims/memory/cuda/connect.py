"""The driver by its name: NVIDIA's, or a stand-in for machines without a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from trims.memory.cuda.api import Borrowing, Cuda


def connect(kind: str = "driver") -> Cuda:
    """Return the driver for an owner, or a stand-in such as `fake:FOLDER`. Raises NotSupportedError if there is none.

    Both are imported here: only processes that use a device pay for them.
    """
    if kind != "driver":
        made: Cuda = stand_in(kind)
        return made
    from trims.memory.cuda.bindings import Driver

    found: Cuda = Driver()
    return found


def connect_borrower(kind: str = "driver") -> Borrowing:
    """Return the driver, or a stand-in for it, for a process that reads what others own: without a package to import.

    Raises NotSupportedError saying what is missing.
    """
    if kind != "driver":
        made: Borrowing = stand_in(kind)
        return made
    from trims.memory.cuda.borrower import BorrowerDriver

    return BorrowerDriver()


def stand_in(kind: str) -> Any:
    """Return a driver for machines without a device: `NAME:FOLDER`, by its name in the entry points `trims.cuda`.

    Beside `Cuda` it has `free_bytes(device)`, which no context is needed for.

    Raises:
        NotSupportedError: There is none of this name; the message names those there are.
    """
    from importlib.metadata import entry_points

    name, _, folder = kind.partition(":")
    found = {entry.name: entry for entry in entry_points(group="trims.cuda")}
    if name not in found:
        raise NotSupportedError(f"there is no CUDA driver {name!r}; known are driver, {', '.join(sorted(found))}")
    return found[name].load()(folder)
