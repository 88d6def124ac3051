"""Transfers from a source of the test's own: what is asked for again, how long, and what stops them."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import tenacity

from trims.core.errors import (
    ArtifactNotFoundError,
    DigestMismatchError,
    LostPeerError,
    SourceUnavailableError,
    TrimsError,
)
from trims.sources.base import RemoteFile
from trims.sources.transfer.limits import Limits
from trims.sources.transfer.partial import PIECE_BYTES, Partial
from trims.sources.transfer.transfer import Moved, Transfer, Work, pause, stated_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trims.sources.base import Part

DATA = random.Random(3).randbytes(20 * PIECE_BYTES + 5)


class Source:
    """An opened address that does with each request what the test says."""

    destination, notes, pinned = None, (), "x://m"

    def __init__(self, before: Callable[[int], None] = lambda request: None) -> None:
        self.files = [RemoteFile("m", len(DATA), '"v1"')]
        self.asked: list[tuple[int, int]] = []
        self.closed = threading.Event()
        self._before = before
        self._lock = threading.Lock()

    def fill(self, file: RemoteFile, parts: Sequence[Part]) -> Iterator[None]:
        del file
        with self._lock:
            self.asked.append((parts[0][0], parts[-1][0] + len(parts[-1][1])))
            number = len(self.asked)
        self._before(number)
        for begin, room in parts:
            if self.closed.is_set():
                raise SourceUnavailableError("closed")
            room[:] = DATA[begin : begin + len(room)]
            yield

    def close(self) -> None:
        self.closed.set()


class Memory:
    """Memory that a transfer fills."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("transfer")
        os.ftruncate(self.fd, len(DATA))
        self.partial = Partial(self.fd, len(DATA))
        self.work = Work(Moved())

    def run(self, source: Any, limits: Limits | None = None, file: RemoteFile | None = None) -> dict[str, str]:
        wanted = file or source.files[0]
        return Transfer(source, wanted, self.partial, limits or Limits(patience_s=0.2), self.work).run()

    def bytes(self) -> bytes:
        return os.pread(self.fd, len(DATA), 0)


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    made.partial.close()
    os.close(made.fd)


def test_each_piece_is_asked_for_once_over_all_connections(memory: Memory) -> None:
    source = Source()
    memory.run(source)
    assert memory.bytes() == DATA
    asked = sorted(source.asked)
    assert [begin for begin, _ in asked] == [0, *[end for _, end in asked[:-1]]]
    assert len(asked) > 4
    assert (memory.work.moved.done_bytes, memory.work.moved.fetched_bytes) == (len(DATA), len(DATA))


# fault (sources): 200 to a range -> nothing; read whole, once
def test_a_source_without_ranges_is_asked_once_over_one_connection(memory: Memory) -> None:
    source = Source()
    memory.run(source, file=RemoteFile("m", len(DATA), '"v1"', in_ranges=False))
    assert source.asked == [(0, len(DATA))]
    assert memory.bytes() == DATA


def test_a_source_that_breaks_off_is_asked_again_for_what_is_missing(memory: Memory) -> None:
    def breaks(request: int) -> None:
        if request <= 2:
            raise SourceUnavailableError("gone for a moment")

    memory.run(Source(breaks))
    assert memory.bytes() == DATA
    assert memory.work.trouble == ""


def test_a_source_that_stays_away_is_given_up_and_its_trouble_is_shown_before(memory: Memory) -> None:
    troubles = set()

    def gone(_: int) -> None:
        troubles.add(memory.work.trouble)
        raise SourceUnavailableError("models.lan cannot be reached")

    with pytest.raises(SourceUnavailableError):
        memory.run(Source(gone))
    assert "models.lan cannot be reached" in troubles


def test_patience_counts_from_the_first_request_and_not_from_the_job(memory: Memory) -> None:
    memory.work.moved_at_s = time.monotonic() - 1000  # it waited that long for another process

    def once(request: int) -> None:
        if request == 1:
            raise SourceUnavailableError("gone for a moment")

    memory.run(Source(once), Limits(patience_s=100))
    assert memory.bytes() == DATA


def test_an_error_for_good_ends_all_connections_and_is_the_one_that_is_raised(memory: Memory) -> None:
    release = threading.Event()

    def fails(request: int) -> None:
        if request == 1:
            release.wait(30)
            raise ArtifactNotFoundError("m is not there")
        release.set()
        raise SourceUnavailableError("closed")

    source = Source(fails)
    with pytest.raises(ArtifactNotFoundError):
        memory.run(source, Limits(patience_s=100))
    assert source.closed.is_set()


def test_a_transfer_that_is_stopped_ends_in_the_middle_of_a_pause(memory: Memory) -> None:
    def stopped(_: int) -> None:
        memory.work.stop.set()
        raise SourceUnavailableError("gone")

    with pytest.raises(LostPeerError) as raised:
        memory.run(Source(stopped), Limits(patience_s=100))
    assert type(raised.value) is LostPeerError


def test_a_transfer_waits_for_a_connection_that_others_have(memory: Memory) -> None:
    limits, source = Limits(connections=1, patience_s=100), Source()
    limits.slots.acquire()
    thread = threading.Thread(target=memory.run, args=(source, limits))
    thread.start()
    assert not source.asked
    limits.slots.release()
    thread.join(30)
    assert memory.bytes() == DATA


def test_bytes_of_another_checksum_are_refused(memory: Memory) -> None:
    source = Source()
    with pytest.raises(DigestMismatchError):
        memory.run(source, file=RemoteFile("m", len(DATA), '"v1"', {"crc64nvme": "0" * 16}))


def test_a_pause_is_as_long_as_the_source_asks_but_not_for_ever() -> None:
    def waited(asked_s: float | None) -> float:
        error = SourceUnavailableError("busy")
        error.retry_after_s = asked_s
        state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        state.set_exception((TrimsError, error, None))  # type: ignore[arg-type]
        return pause(state)

    assert 0 <= waited(None) <= 0.25
    assert waited(7) == 7
    assert waited(86_400) == 200


def test_digests_in_order_are_those_that_are_stated_and_do_not_combine() -> None:
    file = RemoteFile("m", 1, "", {"sha256": "a", "crc32c": "b"})
    assert stated_digests(file, {"blake3": "c", "crc64nvme": "d"}) == {"sha256", "blake3"}
