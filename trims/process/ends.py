"""The end of a process that is no child of this one."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class ProcessEnd:
    """Waits for the end of a process. A context manager.

    Args:
        pid: Process id; if no process has it here, it counts as ended.
    """

    def __init__(self, pid: int) -> None:
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            self._pidfd = -1

    def wait(self, seconds: float) -> bool:
        """Wait for so many seconds at most; True if it has ended."""
        if self._pidfd == -1:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pidfd != -1:
            os.close(self._pidfd)
            self._pidfd = -1
