"""Having a process run out of descriptors, for tests of what it says then.

Only the soft limit is lowered, for the length of a block; open descriptors stay open.
"""

from __future__ import annotations

import contextlib
import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def few_descriptors(left: int) -> Iterator[None]:
    """Let so many more files be opened within the block, and then none.

    Descriptors are numbered from below, so the gaps below the limit are filled first.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + left, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                fillers.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        for _ in range(left):
            os.close(fillers.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)
