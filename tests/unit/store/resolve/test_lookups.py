"""Lookups: one look for each name and epoch, deadlines and sessions that end meanwhile, and workers by mount point."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest
from store_parts import Workers, resolved

from trims.core.errors import (
    ArtifactError,
    CapacityError,
    DeadlineError,
    InternalError,
    LostPeerError,
    ModelNotFoundError,
    TooLargeError,
    TrimsError,
)
from trims.core.lease import Waiter
from trims.core.place import CPU
from trims.store.pending_requests import Outcome, PendingRequest
from trims.store.resolve.hashing import DigestNeededError, LongReadError, NotWantedError, Reading, TurnOverError
from trims.store.resolve.lookups import Lookups
from trims.store.work import PoolsByMount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.store.resolve.resolved import Resolved


class Names:
    """A resolver that finds what the test put there; notes which names were looked into."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self.mounts: dict[str, str] = {}
        self.known: dict[str, Resolved] = {}
        self.answers: dict[str, Resolved | Exception] = {}
        self.looked: list[tuple[str, bool]] = []
        self.wanted: Callable[[], bool] = lambda: True
        self.in_place = False
        self.compares = True
        self.mounts_now: dict[str, str] = {}
        self.paced: list[bool] = []

    def epoch(self, name: str) -> int:
        return self.epochs.get(name, 0)

    def where_now(self, name: str) -> str | None:
        known = self.known.get(name)
        return self.mounts_now.get(name) if known is None else known.mount

    def where(self, name: str) -> str:
        if name not in self.mounts:
            raise ModelNotFoundError(f"there is no model {name!r}; `trims add` registers one")
        return self.mounts[name]

    def resolve(self, name: str, reading: Reading) -> Resolved:
        self.looked.append((name, reading.long))
        self.wanted = reading.wanted
        self.paced.append(reading.behind is not None)
        answer = self.answers[name]
        if isinstance(answer, DigestNeededError) and reading.digest:
            answer = resolved(name)
        if isinstance(answer, LongReadError) and reading.long:
            answer = resolved(name)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Bench:
    """Lookups whose workers run when the test says so."""

    def __init__(self) -> None:
        self.names, self.workers = Names(), Workers()
        self.found: list[tuple[int, Resolved | TrimsError]] = []
        self.refused: list[tuple[int, Outcome]] = []
        self.ticket = 0
        resolver: Any = self.names
        self.lookups = Lookups(
            resolver, lambda ask, result: self.found.append((ask.waiter.ticket, result)), self.workers
        )

    def model(self, name: str, answer: Resolved | Exception | None = None, mount: str = "/") -> None:
        self.names.mounts[name] = mount
        self.names.answers[name] = answer or resolved(name)

    def ask(
        self,
        name: str = "m",
        *,
        session: int | None = 1,
        deadline_at_s: float | None = None,
        lease: bool = True,
        only_look: bool = False,
    ) -> int:
        self.ticket += 1
        ticket = self.ticket
        waiter = Waiter(ticket, session, lease, deadline_at_s)
        ask = PendingRequest(waiter, name, None, lambda it: self.refused.append((ticket, it)), only_look=only_look)
        self.lookups.add(ask)
        return ticket

    def error_of(self, ticket: int) -> TrimsError:
        (error,) = [result for number, result in self.found if number == ticket]
        assert isinstance(error, TrimsError)
        return error


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.model("m")
    yield made
    made.lookups.stop()


def test_asks_for_one_name_share_one_look(bench: Bench) -> None:
    tickets = [bench.ask() for _ in range(3)]
    bench.workers.run()
    assert bench.found == [(ticket, bench.names.answers["m"]) for ticket in tickets]
    assert bench.names.looked == [("m", False)]


def test_an_ask_after_the_manifest_changed_does_not_join_the_look_of_before(bench: Bench) -> None:
    before = bench.ask()
    bench.names.epochs["m"] = 1
    after = bench.ask()
    bench.workers.run()
    assert [ticket for ticket, _ in bench.found] == [before, after]
    assert len(bench.names.looked) == 2


def test_a_name_that_is_remembered_is_looked_into_without_asking_the_registry(bench: Bench) -> None:
    bench.ask()
    assert bench.workers.names == ["names"]
    bench.workers.run()
    bench.names.known["m"] = resolved()
    bench.ask()
    assert bench.workers.names == ["resolve"]


def test_a_path_does_not_wait_for_names_that_the_registry_is_asked_for(bench: Bench) -> None:
    bench.model("file:/m")
    bench.ask("file:/m")
    assert bench.workers.names == ["paths"]
    bench.workers.run()
    assert len(bench.found) == 1


def test_a_path_whose_mount_point_is_known_is_looked_into_at_once(bench: Bench) -> None:
    bench.model("file:/m")
    bench.names.mounts_now["file:/m"] = "/mnt"
    bench.ask("file:/m")
    assert bench.workers.names == ["resolve"]
    bench.workers.run()
    assert len(bench.found) == 1


def test_readers_that_are_shared_outlive_the_lookups(bench: Bench) -> None:
    readers, resolver = PoolsByMount(bench.workers, "read", 1), cast("Any", bench.names)
    lookups = Lookups(resolver, lambda ask, result: None, bench.workers, readers=readers)
    lookups.stop()
    assert readers.of("/").submit(lambda: None)
    assert bench.workers.names == ["read"]


def test_a_name_that_is_not_registered_is_answered_with_the_error(bench: Bench) -> None:
    ticket = bench.ask("absent")
    bench.workers.run()
    assert "'absent'" in str(bench.error_of(ticket))
    assert bench.names.looked == []


@pytest.mark.parametrize(
    ("failure", "kind", "said"),
    [
        (ArtifactError("m.npz is empty"), ArtifactError, "m.npz is empty"),
        (OSError(5, "Input/output error"), ArtifactError, "m cannot be read: Input/output error"),
        (OSError(24, "Too many open files"), CapacityError, "`ulimit -n`"),
        (ValueError("surprise"), InternalError, "m: ValueError: surprise"),
    ],
)
def test_whatever_a_look_ends_in_is_an_answer_that_names_the_culprit(
    bench: Bench, failure: Exception, kind: type[TrimsError], said: str
) -> None:
    bench.model("m", failure)
    ticket = bench.ask()
    bench.workers.run()
    error = bench.error_of(ticket)
    assert type(error) is kind
    assert said in str(error)


def test_a_long_file_is_read_by_workers_of_its_own(bench: Bench) -> None:
    bench.model("m", LongReadError())
    ticket = bench.ask()
    bench.workers.run_one()
    bench.workers.run_one()
    assert bench.workers.names == ["hash"]
    bench.workers.run()
    assert bench.names.looked == [("m", False), ("m", True)]
    assert [number for number, _ in bench.found] == [ticket]


def test_a_deadline_that_passes_answers_its_ask_and_the_look_goes_on_for_the_others(bench: Bench) -> None:
    late, later = bench.ask(deadline_at_s=5.0), bench.ask(deadline_at_s=9.0)
    assert bench.lookups.next_due_s() == 5.0
    bench.lookups.expire(4.9)
    assert bench.found == []
    bench.lookups.expire(5.0)
    error = bench.error_of(late)
    assert isinstance(error, DeadlineError)
    assert "'m' was being looked into" in str(error)
    bench.workers.run()
    assert bench.found[1:] == [(later, bench.names.answers["m"])]
    assert bench.lookups.next_due_s() is None


def test_a_look_whose_only_session_ended_is_given_up(bench: Bench) -> None:
    ticket = bench.ask(session=7)
    bench.lookups.end_session(7)
    ((refused, error),) = bench.refused
    assert refused == ticket
    assert isinstance(error, LostPeerError)
    bench.workers.run()
    assert (bench.found, bench.names.looked) == ([], [])
    bench.ask(session=8)
    bench.workers.run()
    assert len(bench.found) == 1, "the next ask begins a look of its own"


def test_a_file_is_not_read_on_once_the_last_session_that_wants_it_has_ended(bench: Bench) -> None:
    bench.ask(session=7)
    bench.workers.run_one()
    real, wanted = bench.names.resolve, list[bool]()

    def resolve(name: str, reading: Reading) -> Resolved:
        wanted.append(reading.wanted())
        bench.lookups.end_session(7)
        wanted.append(reading.wanted())
        raise NotWantedError

    bench.names.resolve = resolve  # type: ignore[method-assign]
    bench.workers.run()
    bench.names.resolve = real  # type: ignore[method-assign]
    assert wanted == [True, False]
    assert bench.found == []


def test_a_look_goes_on_for_another_session_and_for_a_prefetch(bench: Bench) -> None:
    ended, prefetch = bench.ask(session=7), bench.ask(session=7, lease=False)
    other = bench.ask(session=8)
    bench.lookups.end_session(7)
    assert [ticket for ticket, _ in bench.refused] == [ended]
    bench.workers.run()
    assert [ticket for ticket, _ in bench.found] == [prefetch, other]


def test_an_open_does_not_wait_for_a_look_that_reads_the_whole_file(bench: Bench) -> None:
    bench.names.in_place = True
    prefetch, opened = bench.ask(lease=False), bench.ask()
    bench.workers.run()
    assert sorted(ticket for ticket, _ in bench.found) == [prefetch, opened]
    assert len(bench.names.looked) == 2


def test_opens_of_what_must_be_read_first_wait_for_one_look_with_all_others(bench: Bench) -> None:
    bench.names.in_place, bench.names.answers["m"] = True, DigestNeededError("m")
    tickets = [bench.ask(), bench.ask(lease=False), bench.ask(session=8)]
    bench.lookups.end_session(8)
    bench.workers.run()
    assert sorted(ticket for ticket, _ in bench.found) == tickets[:2]
    assert [ticket for ticket, _ in bench.refused] == tickets[2:]
    assert len(bench.names.looked) == 2
    assert not bench.lookups._looks


def test_the_end_returns_the_asks_that_were_not_answered(bench: Bench) -> None:
    bench.ask()
    bench.workers.run()
    left = [bench.ask(), bench.ask("other")]
    assert [ask.waiter.ticket for ask in bench.lookups.stop()] == left
    bench.workers.run()
    assert [ticket for ticket, _ in bench.found] == [1]


# -- behind readers --------------------------------------------------------------------------------------------------


def test_files_that_no_request_waits_for_have_one_worker_of_their_own_and_a_pace(bench: Bench) -> None:
    bench.model("m")
    bench.ask(session=None, lease=False, only_look=True)
    assert bench.workers.names == ["names"]
    bench.workers.run_one()
    assert bench.workers.names == ["learn"]
    bench.workers.run()
    assert (bench.names.looked, bench.names.paced) == ([("m", True)], [True])


def test_a_request_that_joins_a_look_in_the_line_behind_readers_has_it_begun_at_once(bench: Bench) -> None:
    bench.model("m")
    bench.names.known["m"] = resolved("m")
    learning = bench.ask(session=None, lease=False, only_look=True)
    asking = bench.ask(lease=False)
    assert bench.workers.names == ["learn", "resolve"]
    bench.workers.waiting.rotate(1)  # the ordinary worker is first
    bench.workers.run()
    assert (bench.names.looked, bench.names.paced) == ([("m", False)], [False])
    assert sorted(ticket for ticket, _ in bench.found) == [learning, asking]


def test_a_long_file_that_a_request_hurries_is_looked_at_once(bench: Bench) -> None:
    bench.model("m", LongReadError("m"))
    bench.names.known["m"] = resolved("m")
    bench.ask(session=None, lease=False, only_look=True)
    bench.ask(lease=False)
    bench.workers.waiting.rotate(1)
    bench.workers.run_one()
    assert bench.workers.names == ["learn", "hash"]
    bench.workers.run()
    assert bench.names.looked == [("m", False), ("m", True)]
    assert len(bench.found) == 2


def test_a_look_that_runs_behind_readers_goes_on_without_a_pause_for_a_request(bench: Bench) -> None:
    bench.model("m")
    bench.names.known["m"] = resolved("m")
    real, pauses = bench.names.resolve, list[bool]()

    def resolve(name: str, reading: Reading) -> Resolved:
        assert reading.behind is not None
        pauses.append(not reading.behind._is_awaited())
        bench.ask(lease=False)
        pauses.append(not reading.behind._is_awaited())
        return real(name, reading)

    bench.names.resolve = resolve  # type: ignore[method-assign]
    bench.ask(session=None, lease=False, only_look=True)
    bench.workers.run()
    assert pauses == [True, False]
    assert len(bench.found) == 2


# -- what nobody waits for, and whose turn it is -----------------------------------------------------------------------


def test_a_look_whose_only_ask_ran_out_of_time_is_given_up(bench: Bench) -> None:
    late = bench.ask(deadline_at_s=5.0)
    bench.lookups.expire(5.0)
    assert isinstance(bench.error_of(late), DeadlineError)
    bench.workers.run()
    assert bench.names.looked == []
    assert not bench.lookups._looks


def reading_of(bench: Bench, meanwhile: Callable[[Reading], None]) -> None:
    """The next long read does this, and ends if it is not wanted any more."""
    real = bench.names.resolve

    def resolve(name: str, reading: Reading) -> Resolved:
        if not reading.long:
            return real(name, reading)
        bench.names.resolve = real  # type: ignore[method-assign]
        meanwhile(reading)
        if not reading.wanted():
            raise NotWantedError
        return real(name, reading)

    bench.names.resolve = resolve  # type: ignore[method-assign]


def test_a_file_is_not_read_on_once_the_deadline_of_its_last_ask_has_passed(bench: Bench) -> None:
    bench.model("m", LongReadError())
    late = bench.ask(deadline_at_s=5.0)
    wanted: list[bool] = []

    def expire(reading: Reading) -> None:
        bench.lookups.expire(5.0)
        wanted.append(reading.wanted())

    reading_of(bench, expire)
    bench.workers.run()
    assert wanted == [False]
    assert [ticket for ticket, _ in bench.found] == [late]
    assert not bench.lookups._looks
    assert bench.lookups._by_ticket == bench.lookups._by_session == {}


def test_an_ask_that_joins_a_read_before_it_has_ended_has_it_go_on(bench: Bench) -> None:
    bench.model("m", LongReadError())
    bench.ask(deadline_at_s=5.0)
    joined, wanted = list[int](), list[bool]()

    def late_and_again(reading: Reading) -> None:
        bench.lookups.expire(5.0)
        wanted.append(reading.wanted())
        joined.append(bench.ask())
        wanted.append(reading.wanted())

    reading_of(bench, late_and_again)
    bench.workers.run()
    assert [ticket for ticket, _ in bench.found][1:] == joined
    assert wanted == [False, True]
    assert bench.names.looked == [("m", False), ("m", True)], "one look"


def test_an_ask_that_joins_a_read_that_is_just_ending_is_looked_for_again(bench: Bench) -> None:
    bench.model("m", LongReadError())
    bench.ask(deadline_at_s=5.0)

    def ends(reading: Reading) -> None:
        bench.lookups.expire(5.0)
        bench.ask()
        raise NotWantedError

    reading_of(bench, ends)
    bench.workers.run()
    assert len(bench.found) == 2
    assert bench.found[1][1] == resolved("m")


def test_the_progress_of_a_read_that_was_given_up_is_taken_up_by_the_next_ask(bench: Bench) -> None:
    bench.model("m", LongReadError())
    file, seen = ("m", "1", False), list[int]()

    def some(reading: Reading) -> None:
        assert reading.progress is not None
        part = reading.progress.part(file, certain=True)
        seen.append(part.done_bytes)
        part.done_bytes += 100

    for compares in (True, True, False):
        bench.names.compares = compares
        bench.ask(deadline_at_s=5.0)
        reading_of(bench, lambda reading: (some(reading), bench.lookups.expire(5.0))[0])
        bench.workers.run()
    bench.ask()
    reading_of(bench, some)
    bench.workers.run()
    assert seen == [0, 100, 200, 0], "nothing is taken up where equal identities prove nothing"


def test_of_files_that_were_not_read_to_their_ends_some_are_remembered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trims.store.resolve.lookups._UNFINISHED", 2)
    for name in ("a", "b", "c"):
        bench.model(name, LongReadError())
        bench.ask(name, deadline_at_s=5.0)

        def some(reading: Reading, name: str = name) -> None:
            assert reading.progress is not None
            reading.progress.part((name, "1", False), certain=True).done_bytes = 100
            bench.lookups.expire(5.0)

        reading_of(bench, some)
        bench.workers.run()
    assert list(bench.lookups._unfinished) == ["b", "c"]


def test_sessions_take_turns_with_their_long_reads(bench: Bench) -> None:
    left: Counter[str] = Counter()
    order: list[str] = []

    def resolve(name: str, reading: Reading) -> Resolved:
        if not reading.long:
            raise LongReadError
        order.append(name)
        left[name] -= 1
        if left[name]:
            raise TurnOverError
        return resolved(name)

    bench.names.resolve = resolve  # type: ignore[method-assign]
    for session, name, turns in ((1, "hog1", 3), (1, "hog2", 3), (1, "hog3", 3), (2, "m", 2)):
        left[name] = turns
        bench.model(name)
        bench.ask(name, session=session)
    bench.workers.run()
    assert order.index("m") == 1, "the second session has the second turn"
    assert [at for at, name in enumerate(order) if name == "m"] == [1, 3]
    assert len(bench.found) == 4


def test_asks_for_what_is_too_large_are_refused_before_it_is_read_and_others_are_not(bench: Bench) -> None:
    bench.model("m", LongReadError())
    said: list[bool] = []
    bench.lookups._never_fits = lambda ask, nbytes, stated: (
        TooLargeError(f"{nbytes} at {stated}") if ask.waiter.session == 7 and nbytes > 10 else None
    )
    refused, served = bench.ask(session=7), bench.ask(session=8)

    def sizes(reading: Reading) -> None:
        assert reading.sizes is not None
        said.extend(reading.sizes.may_refuse(nbytes, CPU) for nbytes in (10, 11))
        reading.sizes.refuse(11, CPU)

    reading_of(bench, sizes)
    bench.workers.run()
    assert isinstance(bench.error_of(refused), TooLargeError)
    assert said == [False, True]
    assert bench.found[1:] == [(served, resolved("m"))]
    assert bench.lookups._by_ticket == bench.lookups._by_session == {}


def test_what_is_too_large_for_all_who_ask_is_not_read(bench: Bench) -> None:
    bench.model("m", LongReadError())
    bench.lookups._never_fits = lambda ask, nbytes, stated: TooLargeError("never")
    read: list[str] = []
    bench.ask()

    def sizes(reading: Reading) -> None:
        assert reading.sizes is not None
        reading.sizes.refuse(11, None)
        read.append("m")

    reading_of(bench, sizes)
    bench.workers.run()
    assert read == []
    assert len(bench.found) == 1
    assert not bench.lookups._looks
