"""Pages of mapped files come into memory before they are read: which, in which order, and until when."""

from __future__ import annotations

import gc
import mmap
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import wait_until
from trims_client.mapping import prefault
from trims_client.mapping.prefault import map_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20
PAGE = mmap.PAGESIZE
#: Bytes that the kernel may map round a page if it is cached, at each end.
ROUND_BYTES = 2 << 20


class Owner:
    """Owner that the memory lives with."""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[int]:
    """Yield the address of 32 MiB of a file, mapped and not read."""
    path = tmp_path / "file"
    path.write_bytes(b"\x01" * (32 * MIB))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        yield np.frombuffer(mapped, np.uint8).ctypes.data


def mapped_bytes(address: int) -> int:
    """Return the bytes of the mapping at an address that this process's page table has, as the kernel counts them."""
    with open("/proc/self/smaps") as file:
        for line in file:
            if line.startswith(f"{address:x}-"):
                break
        return next(int(line.split()[1]) for line in file if line.startswith("Rss:")) << 10


def finish(threads: list[threading.Thread]) -> None:
    assert threads
    for each in threads:
        each.join(60)
        assert not each.is_alive()


def test_all_of_it_is_mapped(address: int) -> None:
    owner = Owner()
    assert mapped_bytes(address) == 0
    finish(map_ahead([(address, 32 * MIB)], owner))
    assert mapped_bytes(address) == 32 * MIB


def test_only_what_is_asked_for_is_mapped_in_whole_pages(address: int) -> None:
    owner = Owner()
    finish(map_ahead([(address + 12 * MIB + 1, 16 * MIB), (address + 5, 1)], owner))
    assert 16 * MIB + 2 * PAGE <= mapped_bytes(address) <= 16 * MIB + 4 * ROUND_BYTES


def test_pieces_come_in_the_order_of_the_ranges_and_neighbours_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefault, "_PIECE_BYTES", 4 * PAGE)
    ranges = [(8 * PAGE, PAGE), (9 * PAGE, 10), (9 * PAGE + 10, 100), (PAGE, PAGE), (20 * PAGE, 6 * PAGE)]
    found = list(prefault._pieces(prefault._joined(ranges), 100 * PAGE))
    assert found == [(8 * PAGE, 2 * PAGE), (PAGE, PAGE), (20 * PAGE, 4 * PAGE), (24 * PAGE, 2 * PAGE)]


def test_no_more_is_mapped_than_half_of_the_memory_that_is_there(monkeypatch: pytest.MonkeyPatch, address: int) -> None:
    monkeypatch.setattr(prefault, "available_bytes", lambda: 40 * MIB)
    owner = Owner()
    finish(map_ahead([(address, 32 * MIB)], owner))
    assert 20 * MIB <= mapped_bytes(address) <= 20 * MIB + ROUND_BYTES


def test_little_is_left_to_the_reader(address: int) -> None:
    assert map_ahead([(address, 4 * MIB)], Owner()) == []


class _Stopping:
    """A C library whose calls wait."""

    def __init__(self) -> None:
        self.calls, self.go = 0, threading.Event()

    def madvise(self, address: int, nbytes: int, advice: int) -> int:
        self.calls += 1
        self.go.wait()
        return 0


def test_the_threads_end_with_the_owner_and_do_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    library = _Stopping()
    monkeypatch.setattr(prefault, "c_library", lambda: library)
    owner = Owner()
    gone = weakref.ref(owner)
    threads = map_ahead([(PAGE, 64 * MIB)], owner)
    wait_until(lambda: library.calls == len(threads), "all threads have begun")
    del owner
    gc.collect()
    assert gone() is None
    library.go.set()
    finish(threads)
    assert library.calls == len(threads)


def test_memory_that_is_gone_and_kernels_that_cannot_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Refusing:
        def madvise(self, *given: int) -> int:
            calls.append(given)
            return -1

    monkeypatch.setattr(prefault, "c_library", Refusing)
    threads = map_ahead([(PAGE, 64 * MIB)], Owner())
    finish(threads)
    assert len(calls) <= len(threads)
