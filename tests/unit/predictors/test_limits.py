"""The limit of a predictor's memory: what it has already does not count, what it takes beyond does."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import mmap, resource, sys
before = bytearray(200 << 20)
from trims_predictors.limits import limit_memory
limit_memory(64 << 20)
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
some = bytearray(32 << 20)
with open(sys.executable, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
try:
    more = bytearray(64 << 20)
except MemoryError:
    print("refused")
limit_memory(0)  # no way back
try:
    more = bytearray(64 << 20)
except MemoryError:
    print("refused")
"""


def test_memory_beyond_the_limit_is_refused_and_the_limit_cannot_be_raised() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("refused\nrefused\n", "")
