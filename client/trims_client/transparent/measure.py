"""Cost of a file from shared memory on this host, and of one that is read: for `trims doctor --sharing`."""

from __future__ import annotations

import json
import mmap
import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from trims_client.transparent import file_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

#: Sizes of files, in bytes.
_SIZES = tuple((64 << 10) << 2 * step for step in range(5))
#: Loads of each size and side; the quickest counts.
_TURNS = 15
_PAGE_BYTES = 4096
#: Seconds that a file may take to come to shared memory.
_PATIENCE_S = 30.0


def measure(prefix: str) -> list[tuple[int, float, float]]:
    """Return sizes, seconds from shared memory, and seconds of reading from the page cache; all bytes are touched.

    Args:
        prefix: Beginning of the path of a folder that is made for the files, and removed.

    Raises:
        StepAsideError: The store refuses.
    """
    file_bytes._PATIENCE_S, file_bytes.LEAST_BYTES = _PATIENCE_S, 1
    file_bytes._learn = lambda _: None  # type: ignore[assignment] # smaller files are measured, too
    with tempfile.TemporaryDirectory(prefix=os.path.basename(prefix), dir=os.path.dirname(prefix)) as scratch:
        paths = [os.path.join(scratch, str(size)) for size in _SIZES]
        for path, size in zip(paths, _SIZES, strict=True):
            with open(path, "wb") as file:
                file.write(os.urandom(size))
        time.sleep(file_bytes._REST_S + 0.1)  # until then no file is shared
        return [(size, *_timed(path)) for path, size in zip(paths, _SIZES, strict=True)]


def _timed(path: str) -> tuple[float, float]:
    sides: list[Callable[[str], object]] = [_shared, _read]
    taken: list[list[float]] = [[], []]
    for turn in range(_TURNS + 1):
        for side, times in zip(sides, taken, strict=True):
            since_s = time.perf_counter()
            side(path)
            if turn:  # the first brings the file there
                times.append(time.perf_counter() - since_s)
    return min(taken[0]), min(taken[1])


def _shared(path: str) -> None:
    bytes(file_bytes.bytes_of(path).data[::_PAGE_BYTES])


def _read(path: str) -> None:
    # Memory that is new, as a program's is that loads a model; Python would use that of the last turn again.
    with open(path, "rb", buffering=0) as file, mmap.mmap(-1, os.fstat(file.fileno()).st_size) as memory:
        file.readinto(memory)
        bytes(memoryview(memory)[::_PAGE_BYTES])


def main() -> None:
    """Measure beside the path that is the argument, and print the result as JSON."""
    sys.stdout.write(f"{json.dumps(measure(sys.argv[1]))}\n")
