"""Errors of calls without a free descriptor, kept apart from whatever else may be wrong with a file.

A process without a free descriptor cannot open anything. That says nothing of the file it wanted, so it is a lack of
room and never a broken artifact.
"""

from __future__ import annotations

import errno
from pathlib import Path

from trims.core.errors import CapacityError

_LIMIT_OF_MACHINE = Path("/proc/sys/fs/file-max")


def lacks_descriptors(error: OSError) -> bool:
    """Return whether the call failed only because no more files can be open at once."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def explain_descriptors(error: OSError) -> Exception:
    """Return a CapacityError with limit and remedy if no descriptor was left, else the error itself."""
    if error.errno == errno.EMFILE:
        return CapacityError(
            f"no descriptor left: this process may have {_limit_of_process()} open files; raise the limit "
            "(`ulimit -n`, LimitNOFILE=) or evict models"
        )
    if error.errno == errno.ENFILE:
        return CapacityError(
            f"no descriptor left: this machine may have {_limit_of_machine()} open files, all processes together; "
            "raise the limit (`sysctl fs.file-max`) or evict models"
        )
    return error


def _limit_of_process() -> int:
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _limit_of_machine() -> str:
    try:  # reading it takes a descriptor, which is just what there is none of
        return _LIMIT_OF_MACHINE.read_text().strip()
    except OSError:
        return "no more"
