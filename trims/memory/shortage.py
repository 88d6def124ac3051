"""How a process says that it had no memory left, and how it ends if the kernel finds that out first.

Libraries report a refused allocation in words of their own; frameworks pass it on as any error, or end the process.
Not covered: memory of devices.
"""

from __future__ import annotations

import errno
from pathlib import Path

from trims.core.errors import TrimsError
from trims.core.units import format_bytes
from trims.memory.available import group_bytes

#: Python and numpy, C++, PyTorch and the C library, ONNX Runtime, the loader of libraries, threads without a stack.
_SIGNS = (
    "MemoryError", "bad_alloc", "an't allocate memory", "annot allocate memory", "Unable to allocate",
    "ailed to allocate memory", "failed to map segment", "can't start new thread", "Thread creation failed",
)  # fmt: skip
#: Errors that stand behind an error are looked at up to here.
_MOST_CAUSES = 20
#: Characters of an error's text that are looked at.
_MOST_LETTERS = 8000


def names_memory(text: str) -> bool:
    """Return whether a text says that memory was refused."""
    return any(sign in text for sign in _SIGNS)


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether this process had no memory left, as an error or one that stands behind it says.

    Errors of trims's tree say nothing by themselves: they may come from another process.
    """
    for _ in range(_MOST_CAUSES):
        if error is None:
            return False
        if not isinstance(error, TrimsError) and _is_of_memory(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    try:
        return names_memory(f"{type(error).__name__}: {error}"[:_MOST_LETTERS])
    except Exception:  # noqa: BLE001 - the class of an exception may be a user's, with a method that is broken
        return False


def group_limit(root: Path = Path("/")) -> str:
    """Return what the control group of this process allows, with what raises it; empty if it has no limit.

    Args:
        root: Where `proc` and `sys` lie.
    """
    allowed = group_bytes(root)
    if allowed is None:
        return ""
    remedy = "raise it (a container's memory limit, MemoryMax= of systemd)"
    return f"its control group allows {format_bytes(allowed)} for all of its processes: {remedy}"


def killed_words(root: Path = Path("/")) -> str:
    """Return what may have killed a process that trims has not: for behind `SIGKILL`.

    Args:
        root: Where `proc` and `sys` lie.
    """
    limit = group_limit(root)
    return f" (by the kernel for lack of memory, or by another process{f'; {limit}' if limit else ''})"
