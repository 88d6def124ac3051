"""Record of the calls of our own code in a process: a line for each, in a file that several processes append to.

    python tools/recorded_calls.py FILE PART ARGUMENT...

runs the command `trims ARGUMENT...` and records it as the part PART. A predictor records itself; see `request_path`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import trims_client
import trims_predictors

import trims

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_PACKAGES = {str(Path(each.__file__).parent): each.__name__ for each in (trims, trims_client, trims_predictors)}
_FOLDERS = tuple(_PACKAGES)


class Call(NamedTuple):
    """One call: when, in which process's part, in which file of ours, of which function."""

    at_ns: int
    part: str
    file: str
    function: str


def record(path: str, part: str) -> Callable[[], None]:
    """Record every call in this thread and in threads that are started from now on. Return what ends that here."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def look(frame: FrameType, event: str, argument: Any) -> None:
        del argument
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_FOLDERS):
            os.write(descriptor, f"{time.monotonic_ns()} {part} {code.co_filename} {code.co_name}\n".encode())

    def end() -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        os.close(descriptor)

    threading.setprofile(look)
    sys.setprofile(look)
    return end


def read(path: str, since_ns: int, until_ns: int) -> list[Call]:
    """Return what was recorded between two moments of the monotonic clock, in order; files as `package/file.py`."""
    found = []
    for line in Path(path).read_text().splitlines():
        at_ns, part, file, function = line.split(" ", 3)
        if since_ns <= int(at_ns) <= until_ns:
            folder = next(each for each in _FOLDERS if file.startswith(each))
            found.append(Call(int(at_ns), part, _PACKAGES[folder] + file.removeprefix(folder), function))
    return sorted(found)


def main() -> None:
    """Run a recorded command."""
    path, part, *arguments = sys.argv[1:]
    sys.argv = ["trims", *arguments]
    from trims.cli.main import main as run

    record(path, part)
    sys.exit(run())


if __name__ == "__main__":
    main()
