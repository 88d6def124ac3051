"""The shell: events go in, requests are answered exactly once, and what takes time is done without the lock."""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from store_parts import Conversion, Workers, resolved

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    DigestMismatchError,
    ImageError,
    InUseError,
    LostPeerError,
    ModelNotFoundError,
    TrimsError,
)
from trims.core.lease import Waiter
from trims.core.place import CPU, DISK, Place
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.replica import State
from trims.core.residency.events import Closed, EvictRequested, Filled, PlaceLost, Requested, Tick
from trims.core.residency.residency import Residency
from trims.memory.shm import PosixShm
from trims.store import shell as module
from trims.store.fill.runner import Runner
from trims.store.pending_requests import Granted, Loaded, Outcome, PendingRequest
from trims.store.session_notices import SessionNotices
from trims.store.shell import Shell
from trims.store.watchers import Watchers
from trims.testing.tiers import an_image
from trims.tiers.cpu import CpuTier
from trims.tiers.disk import DiskTier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.store.resolve.resolved import Resolved
    from trims.tiers.base import Tier

KEY = "a" * 64
DATA = an_image(10_000)


class Bench:
    """A shell over real books and tiers, whose workers run when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1.0
        tiers: dict[Place, Tier] = {
            CPU: CpuTier(PosixShm("trims-shell", folder), 100_000),
            DISK: DiskTier(folder / "images", 100_000),
        }
        self.tiers = tiers
        self.residency = Residency(
            {place: tier.capacity_bytes for place, tier in tiers.items()},
            {place: LeastRecentlyUsed() for place in tiers},
        )
        self.workers, self.counters = Workers(), Counter[str]()
        self.failure: Exception | None = None
        self.again: list[tuple[PendingRequest, TrimsError]] = []
        self.told: list[object] = []
        self.runner = Runner(tiers, self._convert, lambda event: self.shell.feed(event), pools=self.workers)
        self.shell = Shell(
            self.residency,
            self.runner,
            Watchers(self.counters),
            SessionNotices(),
            self.counters,
            verify=True,
            clock=lambda: self.now,
        )
        self.shell.connect(again=lambda ask, error: self.again.append((ask, error)), filled=self.told.append)
        self.session = self.shell.begin_session()
        self.tickets = itertools.count(1)

    def _convert(self, resolved: Resolved) -> Any:
        return Conversion(len(DATA), DATA, self.failure)

    def ask(
        self, *, session: int | None = None, place: Place = CPU, lease: bool = True, key: str = KEY, known: bool = True
    ) -> list[Outcome]:
        """Ask for the image; what it is answered comes into the list, now or later."""
        answers: list[Outcome] = []

        def answer(outcome: Outcome) -> None:
            assert not self.shell.lock.locked(), "no answer is given under the lock"
            answers.append(outcome)
            self.told.append(outcome)

        made = resolved(key=key) if known else None
        waiter = Waiter(next(self.tickets), session or self.session, lease, deadline_at_s=None)
        ask = PendingRequest(waiter, "m", None, answer, resolved=made)
        self.waits = self.shell.ask(ask, Requested(at_s=self.now, key=key, place=place, waiter=waiter))
        return answers

    def opened(self, place: Place = CPU) -> Granted:
        answers = self.ask(place=place)
        self.workers.run()
        (granted,) = answers
        assert isinstance(granted, Granted)
        return granted

    def end(self) -> None:
        self.workers.run()
        for replica, extent in self.runner.extents().items():
            self.tiers[replica.place].free(extent)
        self.runner.stop()


@pytest.fixture
def bench(folder: Path) -> Iterator[Bench]:
    made = Bench(folder)
    yield made
    made.end()


def error_of(answers: list[Outcome]) -> TrimsError:
    (error,) = answers
    assert isinstance(error, TrimsError)
    return error


def test_a_cold_open_waits_is_loaded_and_granted_before_its_fill_is_told_to_others(bench: Bench) -> None:
    answers = bench.ask()
    assert bench.waits
    bench.workers.run()
    (granted,) = answers
    assert isinstance(granted, Granted)
    assert (granted.warm, granted.nbytes, granted.key) == (False, len(DATA), KEY)
    assert os.pread(granted.fd, len(DATA), 0) == DATA
    assert [type(each) for each in bench.told] == [Granted, Filled]
    assert (bench.counters["cold"], bench.counters["warm"], bench.counters["fills.cpu"]) == (1, 0, 1)


def test_an_open_of_a_resident_image_is_granted_at_once(bench: Bench) -> None:
    cold = bench.opened()
    (warm,) = bench.ask()
    assert isinstance(warm, Granted)
    assert (warm.warm, bench.waits, bench.counters["warm"]) == (True, False, 1)
    assert (warm.fd, warm.digest) == (cold.fd, cold.digest)
    assert warm.lease != cold.lease


def test_a_prefetch_is_answered_without_a_lease(bench: Bench) -> None:
    answers = bench.ask(lease=False)
    bench.workers.run()
    assert answers == [Loaded(KEY, CPU, len(DATA))]
    assert bench.residency.leases.by_number == {}


def test_a_request_of_a_session_that_ended_is_refused_and_leaves_nothing(bench: Bench) -> None:
    bench.shell.end_session(bench.session)
    assert isinstance(error_of(bench.ask(session=bench.session)), LostPeerError)
    assert (bench.waits, bench.residency.replicas) == (False, {})


def test_the_end_of_a_session_closes_its_leases_and_refuses_what_it_waits_for(bench: Bench) -> None:
    bench.opened()
    other = bench.shell.begin_session()
    waiting, others = bench.ask(key="b" * 64), bench.ask(key="b" * 64, session=other)
    for _ in range(2):
        bench.shell.end_session(bench.session)
    assert isinstance(error_of(waiting), LostPeerError)
    assert others == []
    assert bench.residency.leases.by_number == {}
    bench.workers.run()
    assert [type(each) for each in others] == [Granted]


def test_an_image_whose_artifact_is_not_known_is_opened_by_name(bench: Bench) -> None:
    error = error_of(bench.ask(known=False))
    assert isinstance(error, ModelNotFoundError)
    assert f"the artifact of image {KEY[:16]} is not known to this daemon; open it by name" in str(error)


@pytest.mark.parametrize(
    "failure",
    [
        ImageError("it is too short to be an image"),
        DigestMismatchError("other bytes"),
        ArtifactChangedError("m.npz changed"),
    ],
)
def test_a_request_that_meets_broken_or_changed_bytes_is_looked_into_once_more(
    bench: Bench, failure: Exception
) -> None:
    bench.failure = failure
    answers = bench.ask()
    bench.workers.run()
    ((ask, error),) = bench.again
    assert (error, ask.retried, answers) == (failure, True, [])
    bench.shell.ask(ask, Requested(at_s=bench.now, key=KEY, place=CPU, waiter=ask.waiter))
    bench.workers.run()
    assert error_of(answers) is failure
    assert len(bench.again) == 1


def test_another_failure_is_answered_at_once_and_counted_by_its_code(bench: Bench) -> None:
    bench.failure = ArtifactError("m.npz is truncated")
    answers = bench.ask()
    bench.workers.run()
    assert error_of(answers) is bench.failure
    assert (bench.again, bench.counters["refused.bad_artifact"]) == ([], 1)


@pytest.mark.parametrize("name", ["m", "file:/models/m.npz"])
def test_a_late_answer_names_the_model_and_what_it_waited_for(name: str, bench: Bench) -> None:
    answers: list[Outcome] = []
    waiter = Waiter(next(bench.tickets), bench.session, wants_lease=True, deadline_at_s=bench.now + 1.0)
    ask = PendingRequest(waiter, name, None, answers.append, resolved=resolved(key=KEY))
    bench.shell.ask(ask, Requested(at_s=bench.now, key=KEY, place=CPU, waiter=waiter))
    bench.shell.feed(Tick(at_s=bench.now + 2.0))
    told = str(error_of(answers))
    assert told.startswith(f"{name.removeprefix('file:')}: the deadline passed while its artifact was read to find its")


def test_a_file_that_was_touched_since_it_was_sealed_is_retired_and_not_lent(bench: Bench) -> None:
    granted = bench.opened(DISK)
    os.utime(f"/proc/self/fd/{granted.fd}", ns=(1, 1))
    answers = bench.ask(place=DISK)
    ((ask, error),) = bench.again
    assert (answers, type(error), ask.retried, bench.counters["broken"]) == ([], ImageError, True, 1)
    (replica,) = bench.residency.replicas.values()
    assert (replica.state, len(replica.leases)) == (State.DRAINING, 1)


def test_requests_that_were_not_answered_are_taken_once(bench: Bench) -> None:
    answers = bench.ask(lease=False)
    assert [ask.name for ask in bench.shell.take_asks()] == ["m"]
    assert bench.shell.take_asks() == []
    bench.workers.run()
    assert answers == [], "whatever took it answers"


def test_a_lease_is_looked_up_only_for_the_session_that_has_it(bench: Bench) -> None:
    granted, other = bench.opened(), bench.shell.begin_session()
    assert bench.shell.place_of(bench.session, granted.lease) == CPU
    extent = bench.shell.extent_of(bench.session, granted.lease)
    assert extent is not None
    assert extent.fd == granted.fd
    assert bench.shell.place_of(other, granted.lease) is None
    assert bench.shell.extent_of(other, granted.lease) is None
    assert bench.shell.place_of(bench.session, 99) is None


def test_a_lease_whose_memory_is_lost_is_told_without_the_lock(bench: Bench) -> None:
    granted = bench.opened()
    lost: list[tuple[int, str, bool]] = []
    bench.shell.notices.subscribe_to_losses(
        lambda lease, why: lost.append((lease.number, why, bench.shell.lock.locked()))
    )
    bench.shell.feed(PlaceLost(at_s=2.0, place=CPU, reason="its keeper has ended"))
    assert lost == [(granted.lease, "its keeper has ended", False)]
    assert bench.counters["leases_lost"] == 1


def test_an_order_that_is_refused_raises_and_changes_nothing(bench: Bench) -> None:
    bench.opened()
    with pytest.raises(InUseError, match=r"1 lease\(s\)"):
        bench.shell.feed(EvictRequested(at_s=2.0, key=KEY, place=CPU, drain=False))
    assert bench.shell.is_resident(KEY, CPU)
    assert not bench.shell.is_resident(KEY, DISK)


def test_keys_are_found_by_their_beginning(bench: Bench) -> None:
    bench.opened()
    bench.ask(key="ab" * 32, lease=False)
    assert bench.shell.keys_that_begin("aa") == {KEY}
    assert bench.shell.keys_that_begin("a") == {KEY, "ab" * 32}
    assert bench.shell.keys_that_begin("b") == set()


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store remember two images; beyond that, those that are not needed are forgotten."""
    monkeypatch.setattr(module, "_REMEMBERED_IMAGES", 2)


def test_of_images_that_are_neither_resident_nor_asked_for_the_latest_is_remembered(
    forgetful: None, bench: Bench
) -> None:
    bench.opened()
    bench.ask(key="b" * 64)
    for letter in "cdefg":
        session = bench.shell.begin_session()
        bench.ask(key=letter * 64, session=session)
        bench.shell.end_session(session)
    assert {letter for letter in "abcdefg" if bench.shell.image(letter * 64) is not None} == set("abg")


def test_waiting_for_a_change_of_the_books_ends_when_it_holds_or_with_the_time(bench: Bench) -> None:
    bench.ask()
    assert not bench.shell.wait_for(lambda: False, 0.0)
    done = threading.Thread(target=bench.workers.run)
    done.start()
    assert bench.shell.wait_for(lambda: bool(bench.residency.leases.by_number), 60.0)
    done.join()


def test_readers_on_disk_can_be_upgraded_once_the_same_bytes_lie_in_memory(bench: Bench) -> None:
    bench.opened(DISK)
    bench.opened(DISK)
    assert bench.shell.upgradable(KEY) == []
    in_memory = bench.opened(CPU)
    assert bench.shell.upgradable(KEY) == [bench.session]
    assert bench.shell.upgradable(KEY, bench.session) == [bench.session]
    assert bench.shell.upgradable(KEY, bench.session + 1) == []
    (extent,) = [each for each in bench.runner.sealed.values() if each.place is CPU]
    extent.digest = "of other bytes"
    assert bench.shell.upgradable(KEY) == []
    bench.shell.feed(Closed(at_s=bench.now, lease=in_memory.lease, session=bench.session))
    bench.shell.feed(EvictRequested(at_s=bench.now, key=KEY, place=CPU, drain=False))
    assert bench.shell.upgradable(KEY) == []


def test_what_the_store_wants_for_itself_is_filled_behind_until_requested(bench: Bench) -> None:
    bench.opened(DISK)
    waiter = Waiter(next(bench.tickets), None, wants_lease=False, deadline_at_s=None, internal=True)
    ask = PendingRequest(waiter, "m", CPU, lambda _: None, resolved=resolved(key=KEY))
    bench.shell.ask(ask, Requested(at_s=bench.now, key=KEY, place=CPU, waiter=waiter))
    assert "behind" in bench.workers.names
    assert "copy" not in bench.workers.names
    bench.ask(place=CPU)
    assert "copy" in bench.workers.names
