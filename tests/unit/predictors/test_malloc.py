"""Heaps: page faults of buffers that come and go, counted in fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Takes and gives back what a few requests hold at once, and prints whether that is kept, and the pages that came anew.
PROGRAM = """
import resource
from trims_predictors.malloc import keep_memory, take_ahead

kept = {how}

def take_and_give_back(times):
    for _ in range(times):
        buffers = [bytes(bytearray(700_000)) for _ in range(6)]
        del buffers

{first}
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
take_and_give_back(100)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
#: Pages of one round.
PAGES = 6 * 700_000 // 4096


def run(how: str, first: str = "take_and_give_back(3)", **variables: str) -> tuple[bool, int]:
    """Return whether memory is kept, and the page faults of 100 rounds after the first thing that is done."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM.format(how=how, first=first)]
    done = subprocess.run(command, env={**own, **variables}, capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    return kept == "True", int(faults)


def test_memory_of_a_request_serves_the_next_ones() -> None:
    kept, faults = run("keep_memory()")
    if not kept:
        pytest.skip("the C library is not glibc")
    assert faults < PAGES
    assert run("False")[1] > 10 * PAGES


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072")]
)
def test_an_allocator_that_the_environment_sets_stays_as_it_is(name: str, value: str) -> None:
    assert run("keep_memory()", **{name: value})[0] is False


def test_a_tunable_of_something_else_is_no_choice_of_the_allocator() -> None:
    tuned = run("keep_memory()", GLIBC_TUNABLES="glibc.rtld.optional_static_tls=512")
    assert tuned[0] == run("keep_memory()")[0]


def test_memory_that_was_taken_ahead_serves_the_first_request() -> None:
    kept, faults = run("keep_memory()", "take_ahead(8 << 20)")
    if not kept:
        pytest.skip("the C library is not glibc")
    assert faults < PAGES // 2
    assert run("keep_memory()", "pass")[1] > PAGES
