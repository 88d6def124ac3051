"""`trims` in circumstances that a machine seldom has: `python -m trims_bench.altered OPTIONS -- ARGUMENTS`.

--files N         at most N open files, soft and hard
--slow-file PATH  every look at this file (`os.stat`) takes --slow-s seconds, while PATH.slow is there
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from typing import Any

from trims.cli.main import main


def slow_mark(path: str) -> str:
    """The file whose being there makes looks at `path` slow."""
    return f"{path}.slow"


def _limit_files(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _slow_down(path: str, seconds: float) -> None:
    """Make looks at one file slow: the store looks with `os.stat`, called through the module."""
    plain, mark = os.stat, slow_mark(path)

    def stat(looked_at: Any, *given: Any, **named: Any) -> os.stat_result:
        if not isinstance(looked_at, int) and os.fspath(looked_at) == path and os.access(mark, os.F_OK):
            time.sleep(seconds)
        return plain(looked_at, *given, **named)

    os.stat = stat  # type: ignore[assignment] # the overloads of a built-in function


def run() -> int:
    """Run a daemon that this program has altered, and return its exit status."""
    parser = argparse.ArgumentParser(prog="trims_bench.altered")
    parser.add_argument("--files", type=int, help="at most so many open files, soft and hard")
    parser.add_argument("--slow-file", help="looks at this file (os.stat) are slow while FILE.slow is there")
    parser.add_argument("--slow-s", type=float, default=3.0, help="seconds of each such look")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.files is not None:
        _limit_files(options.files)
    if options.slow_file is not None:
        _slow_down(options.slow_file, options.slow_s)
    return main(options.arguments[1:])  # without the "--"


if __name__ == "__main__":
    sys.exit(run())
