"""Checking an image in a process of its own: for images whose description is too large to parse where others wait.

The child runs this package alone, reads one descriptor, and answers by its exit status: one line says what is wrong. It
has limits, because the file's author decides how much there is to parse; they also end it if its parent dies. Not
covered: which images are too large (`trims.image.peek`), and converters (`trims.formats.conversion.child_process`).
"""

from __future__ import annotations

import os
import resource
import sys

from trims.core.errors import ConversionError, ImageError
from trims.core.units import format_bytes
from trims.image.check import check_image
from trims.image.descriptors import explain_descriptors
from trims.image.peek import without_weights
from trims.image.reader import ImageView
from trims.process.child import exit_words
from trims.process.child_environment import child_environment
from trims.process.oneshot import run
from trims.process.python import run_ours

_MEMORY_BYTES = 4 << 30
#: Seconds of the processor in the child, and of the clock here: the largest header that is allowed takes some 5 s.
_TIME_S = 120
_WRONG = 3
_MAX_MESSAGE = 2000


def check_apart(fd: int, nbytes: int) -> None:
    """Check that a file is an image in every respect, in a child.

    Raises ImageError naming the first thing that is wrong, ConversionError if the child could not finish, CapacityError
    if this process has no descriptor left to start it.
    """
    # The package from its own folder and the standard library: no environment can be in the way.
    command = run_ours(__name__, str(fd), str(nbytes), flags=("-I", "-S"))
    try:
        done = run(command, seconds=_TIME_S, fds=[fd], env=child_environment())
    except TimeoutError as error:
        raise ConversionError(f"an image of {format_bytes(nbytes)} was not checked within {_TIME_S} s") from error
    except OSError as error:
        raise explain_descriptors(error) from error
    if done.status == _WRONG:
        raise ImageError(done.out)
    if done.status != 0:
        words = done.err.strip()[-_MAX_MESSAGE:]
        raise ConversionError(f"the process that checks an image {exit_words(done.status)}: {words}")


def check_here(fd: int, nbytes: int) -> None:
    """Check the image in this process. Raises ImageError; OSError if the file cannot be read."""
    # Not closed by hand: what was wrong is found with views in hand, and the memory goes with the last of them.
    check_image(ImageView(memoryview(without_weights(fd, nbytes))))


def _limit(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (limit, limit))


def main() -> None:
    """Entry of the child. Arguments: descriptor, length of the image."""
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, _TIME_S),
    ):
        _limit(what, most)
    try:
        check_here(int(sys.argv[1]), int(sys.argv[2]))
    except ImageError as error:
        sys.stdout.write(str(error)[:_MAX_MESSAGE])
        sys.stdout.flush()
        os._exit(_WRONG)
    os._exit(0)
