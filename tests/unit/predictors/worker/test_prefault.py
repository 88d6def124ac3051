"""Pages that forks write, recorded and copied ahead: in forks of a fresh process, whose page faults are counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trims_predictors.worker.prefault import MOST_NUMBERS, MOST_PAGES, WrittenPages, _runs, check_pages, page_ranges

from trims.core.errors import BadMessageError

#: A template with 4 MiB of its own. One fork writes every fourth page of half of them and prints which pages it wrote.
#: Two more do the same, of which one copies those pages ahead; both print the page faults of their writing.
PROGRAM = """
import ctypes, json, mmap, os, resource, sys
import numpy
from trims_predictors.worker.prefault import Record, copy_ahead

block = bytearray(b"1" * (4 << 20))
address = ctypes.addressof(ctypes.c_char.from_buffer(block))
first = -(-address // mmap.PAGESIZE)

def write():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for page in range(first, first + 512, 4):
        block[page * mmap.PAGESIZE - address] = 50
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def in_a_fork(work):
    mine, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        with os.fdopen(theirs, "w") as pipe:
            json.dump(work(), pipe)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(mine) as pipe:
        found = json.load(pipe)
    os.waitpid(pid, 0)
    return found

def recorded():
    record = Record.begin()
    if record is None:
        return None
    write()
    return record.end()

def ahead():
    copied = copy_ahead(pages)
    return [copied, write(), bytes(block[:1]).decode()]

pages = in_a_fork(recorded)
found = {"pages": pages, "first": first, "ahead": pages and in_a_fork(ahead), "without": in_a_fork(write)}
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def forks() -> dict[str, list[int]]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    found: dict[str, list[int]] = json.loads(done.stdout)
    if found["pages"] is None:
        pytest.skip("the kernel does not tell which pages a process has of its own")
    return found


def test_a_fork_records_each_page_that_it_wrote(forks: dict[str, list[int]]) -> None:
    first = int(str(forks["first"]))
    written = {page for begin, count in _runs(forks["pages"]) for page in range(begin, begin + count)}
    block = range(first, first + 1000)
    assert written & set(block) == set(range(first, first + 512, 4))


def test_pages_that_were_copied_ahead_are_written_without_faults(forks: dict[str, list[int]]) -> None:
    copied, faults, value = forks["ahead"]
    assert int(str(forks["without"])) >= 128
    assert faults < 16
    assert copied >= 128
    assert str(value) == "1"


def test_pages_that_are_not_there_harm_nothing() -> None:
    program = (
        "from trims_predictors.worker.prefault import copy_ahead; print(copy_ahead([0, 1, 5, 3, (1 << 35) - 9, 1]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_a_process_without_numpy_records_nothing() -> None:
    program = "from trims_predictors.worker.prefault import Record; print(Record.begin())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


@given(st.sets(st.integers(0, 5000), max_size=300))
def test_any_pages_come_back_as_they_were_told(pages: set[int]) -> None:
    numbers = page_ranges(sorted(pages))
    check_pages(numbers)
    assert [page for begin, count in _runs(numbers) for page in range(begin, begin + count)] == sorted(pages)


@pytest.mark.parametrize(
    "numbers", [None, "no", [1], [1, -1], [1, 2.0], [True, 1], [1 << 60, 1], [0] * (MOST_NUMBERS + 2), {"a": 1}]
)
def test_what_is_no_list_of_pages_is_refused(numbers: object) -> None:
    with pytest.raises(BadMessageError, match="no list of numbers of pages"):
        check_pages(numbers)


def test_the_pages_of_several_models_are_told_together() -> None:
    pages = WrittenPages()
    pages.learn("a", [10, 2])
    pages.learn("b", [11, 3])
    assert pages.page_ranges() == [10, 4]
    assert not pages.lacks("a")
    assert pages.lacks("c")


def test_more_pages_than_are_copied_for_a_spare_are_not_remembered() -> None:
    pages = WrittenPages()
    pages.learn("hostile", [0, 1 << 35])
    pages.learn("a", [0, MOST_PAGES - 1])
    pages.learn("b", [0, MOST_PAGES, 5, 5][2:])
    assert pages.page_ranges() == [0, MOST_PAGES - 1]
    pages.learn("c", [MOST_PAGES, 1])
    assert not pages.lacks("d")


def test_models_that_come_without_end_are_not_all_remembered() -> None:
    pages = WrittenPages()
    for number in range(2000):
        if pages.lacks(str(number)):
            pages.learn(str(number), [])
    assert len(pages._deployments) <= 1024


def test_this_machine_tells_which_pages_a_process_has_of_its_own() -> None:
    assert os.access("/proc/self/pagemap", os.R_OK)
