"""Loading without a daemon, if the caller asked for it: a private copy, made by a child process of the same trims.

The child converts as `trims convert` does, so every format and every registered name works as with a daemon, but
slower and unshared.
"""

from __future__ import annotations

import os
import subprocess

from trims.core.errors import ConversionError
from trims.memory.attach import Attachment
from trims.process.python import run_module
from trims.process.system_calls import require
from trims_client.weights import Weights


def load_here(name: str) -> Weights:
    """Convert a registered model or a file into private memory.

    Raises ConversionError with the child's message, NotSupportedError if a sandbox refuses a system call.
    """
    require({"memfd_create"})
    fd = os.memfd_create("trims-private", os.MFD_CLOEXEC)
    try:
        command = run_module("trims.control.convert", name, str(fd))
        done = subprocess.run(command, pass_fds=[fd], capture_output=True, text=True, check=False)
        # Where this process ignores SIGCHLD, every child counts as ended with status 0.
        if done.returncode != 0 or not os.fstat(fd).st_size:
            raise ConversionError(f"{name} could not be loaded without a daemon: {done.stderr.strip()[-2000:]}")
        return Weights(name, Attachment(fd, os.fstat(fd).st_size), place="cpu", shared=False, trusted=True)
    finally:
        os.close(fd)
