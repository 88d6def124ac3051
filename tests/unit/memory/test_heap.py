"""Large buffers of a process with many threads are given back to the kernel."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Frees one buffer of 16 MiB in each of eight threads that stay, and says how many private MiB are left.
_PROGRAM = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from trims.memory.heap import return_large_buffers
if sys.argv[1] == "returned":
    assert return_large_buffers()
together = threading.Barrier(8)
def use(_):
    for _ in range(3):
        bytearray(16 << 20)[::4096] = bytes(4096)
    together.wait()
with ThreadPoolExecutor(8) as pool:
    list(pool.map(use, range(8)))
    told = Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]
print(int(told) >> 10)
"""


def private_mib(how: str, **environment: str) -> int:
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, how],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(run.stdout)


def test_threads_keep_no_large_buffer_that_they_have_freed() -> None:
    kept, returned = private_mib("kept"), private_mib("returned")
    if kept < 80:
        pytest.skip("this C library gives buffers back by itself")
    assert returned < kept - 48


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_MMAP_THRESHOLD_", "33554432"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=33554432")],
)
def test_an_allocator_that_the_environment_sets_is_left_alone(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trims.memory.heap import return_large_buffers

    monkeypatch.setenv(name, value)
    assert not return_large_buffers()
