"""Lookups: one look for each name and epoch, deadlines and sessions that end meanwhile, and workers by mount point."""

from __future__ import annotations

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
    TrimsError,
)
from trims.core.lease import Waiter
from trims.store.asks import Ask, Outcome
from trims.store.hashing import DigestNeededError, LongReadError, NotWantedError, Reading
from trims.store.lookups import Lookups
from trims.store.work import PoolsByMount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.store.resolve import Resolved


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
        ask = Ask(waiter, name, None, lambda it: self.refused.append((ticket, it)), only_look=only_look)
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
    real = bench.names.resolve

    def resolve(name: str, reading: Reading) -> Resolved:
        assert reading.wanted()
        bench.lookups.end_session(7)
        assert not reading.wanted()
        raise NotWantedError

    bench.names.resolve = resolve  # type: ignore[method-assign]
    bench.workers.run()
    bench.names.resolve = real  # type: ignore[method-assign]
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
