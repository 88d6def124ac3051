"""Loading without a daemon, for who asked for it: a private copy, made by a child of the same trims.

The child is `trims convert`, so every format and every registered name works as with a daemon, only slower and
unshared.
"""

from __future__ import annotations

import os
import subprocess
import sys

from trims.core.errors import ConversionError
from trims.memory.attach import Attachment
from trims_client.weights import Weights


def load_here(name: str) -> Weights:
    """Convert a registered model or a file into memory of this process; ConversionError carries the child's words."""
    fd = os.memfd_create("trims-private", os.MFD_CLOEXEC)
    try:
        command = [sys.executable, "-m", "trims.cli.main", "convert", name, "--to-fd", str(fd)]
        done = subprocess.run(command, pass_fds=[fd], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ConversionError(f"{name} could not be loaded without a daemon: {done.stderr.strip()[-2000:]}")
        return Weights(name, Attachment(fd, os.fstat(fd).st_size), place="cpu", shared=False, trusted=True)
    finally:
        os.close(fd)
