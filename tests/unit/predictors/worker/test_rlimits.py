"""The limit of a predictor's memory: what it has already does not count, what it takes beyond does."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from trims_predictors.worker import rlimits
from trims_predictors.worker.rlimits import memory_words

if TYPE_CHECKING:
    import pytest

PROGRAM = """
import mmap, resource, sys
before = bytearray(200 << 20)
from trims_predictors.worker.rlimits import limit_memory
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


def test_the_limit_that_was_met_is_the_predictor_s_its_group_s_or_the_machine_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rlimits, "group_limit", lambda: "its control group allows 1.0 GiB")
    assert memory_words(64 << 20) == "it may take 64.0 MiB of memory of its own: raise --predictor-memory"
    assert memory_words(None) == "its control group allows 1.0 GiB"
    monkeypatch.setattr(rlimits, "group_limit", lambda: "")
    assert memory_words(None).startswith("this machine has no memory left for it: ")
