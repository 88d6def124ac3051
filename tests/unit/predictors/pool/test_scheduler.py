"""Which predictor answers which request: no line starves, no slot is lost, and each request is answered once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from trims_predictors.deployment.key import DeploymentKey
from trims_predictors.pool.events import Fail, Job, Limits, Run, Start, Step, Stop
from trims_predictors.pool.scheduler import Schedule

from trims.core.errors import BusyError, InvariantError, ModelNotFoundError, PredictorError

ONE = Limits()
BATCHED = Limits(batch=4)


def submitted(schedule: Schedule, line: str = "a", limits: Limits = ONE) -> tuple[Job, list[Step]]:
    job = Job(DeploymentKey(line))
    return job, schedule.submit(job, limits)


def running(schedule: Schedule, line: str = "a") -> tuple[int, Job]:
    """A predictor that has a job."""
    job, steps = submitted(schedule, line)
    (start,) = steps
    assert isinstance(start, Start)
    assert schedule.ready(start.predictor) == [Run(start.predictor, (job,))]
    return start.predictor, job


def test_the_first_request_starts_a_predictor_and_is_answered_by_it() -> None:
    schedule = Schedule(4)
    predictor, _ = running(schedule)
    assert schedule.done(predictor) == []
    assert schedule.counts(DeploymentKey("a")) == {"queued": 0, "starting": 0, "idle": 1, "busy": 0}
    job, steps = submitted(schedule)
    assert steps == [Run(predictor, (job,))]


def test_requests_wait_in_order_while_the_predictor_is_busy() -> None:
    schedule = Schedule(4)
    predictor, _ = running(schedule)
    second, _ = submitted(schedule)
    third, _ = submitted(schedule)
    assert schedule.done(predictor) == [Run(predictor, (second,))]
    assert schedule.done(predictor) == [Run(predictor, (third,))]


def test_jobs_of_a_lower_level_go_first_and_those_of_one_level_in_order() -> None:
    schedule = Schedule(4)
    predictor, _ = running(schedule)
    jobs = [Job(DeploymentKey("a"), level=level) for level in (2, 3, 1, 2, 1)]
    for job in jobs:
        schedule.submit(job, ONE)
    assert schedule.cancel(jobs[2]) == []
    ran = []
    for _ in range(4):
        (step,) = schedule.done(predictor)
        assert isinstance(step, Run)
        ran.append(jobs.index(step.jobs[0]))
    assert ran == [4, 0, 3, 1]
    schedule.validate()


def test_a_line_has_at_most_its_instances() -> None:
    schedule = Schedule(4)
    limits = Limits(instances=2)
    starts = [step for _ in range(5) for step in submitted(schedule, limits=limits)[1]]
    assert [type(step) for step in starts] == [Start, Start]


def test_a_queue_extends_to_its_most_for_requests_that_wait() -> None:
    schedule = Schedule(8)
    limits = Limits(most=3)
    for _ in range(4):
        submitted(schedule, limits=limits)
    key = DeploymentKey("a")
    assert [len(schedule.extend(key)) for _ in range(3)] == [1, 1, 0]
    assert schedule.surplus(key) == 2
    schedule.validate()


def test_a_queue_extends_ahead_only_while_all_its_predictors_are_busy() -> None:
    schedule = Schedule(8)
    _, (start,) = submitted(schedule, limits=Limits(most=3))
    assert isinstance(start, Start)
    key = DeploymentKey("a")
    schedule.ready(start.predictor)
    assert schedule.extend(key) == []
    (further,) = schedule.extend(key, ahead=True)
    assert isinstance(further, Start)
    assert schedule.extend(key, ahead=True) == []
    schedule.ready(further.predictor)
    assert schedule.extend(key, ahead=True) == []
    schedule.validate()


def test_further_predictors_take_half_of_the_slots_and_none_that_is_wanted() -> None:
    schedule = Schedule(4)
    limits = Limits(most=9)
    for _ in range(6):
        submitted(schedule, limits=limits)
    key = DeploymentKey("a")
    assert [len(schedule.extend(key)) for _ in range(3)] == [1, 1, 0]
    submitted(schedule, "b")
    submitted(schedule, "c")  # waits for a slot
    for number in (2, 3):
        schedule.failed(number, ModelNotFoundError("gone"))
        schedule.ended(number, "by hand")
    assert schedule.counts(DeploymentKey("c"))["starting"] == 1
    schedule.validate()


def test_an_idle_predictor_of_another_queue_gives_way_to_a_request_that_waits() -> None:
    schedule = Schedule(4)
    for name in ("b", "c"):
        _, (start,) = submitted(schedule, name)
        schedule.ready(start.predictor)
        schedule.done(start.predictor)
    key = DeploymentKey("a")
    for _ in range(4):
        submitted(schedule, limits=Limits(most=9))
    (further,) = schedule.extend(key)
    assert isinstance(further, Start)
    (stop,) = schedule.extend(key)
    assert (type(stop), stop.predictor) == (Stop, 1)
    (other,) = schedule.extend(key)
    assert (type(other), other.predictor) == (Stop, 2)
    assert schedule.extend(key) == []
    schedule.validate()
    assert schedule.ended(1, "by hand") == []
    assert [type(each) for each in schedule.extend(key)] == [Start]
    schedule.validate()


def test_a_full_queue_refuses_and_keeps_what_waits() -> None:
    schedule = Schedule(4)
    for _ in range(3):
        submitted(schedule, limits=Limits(queue=3))
    with pytest.raises(BusyError, match="3 requests for 'a' wait already"):
        submitted(schedule, limits=Limits(queue=3))
    assert schedule.counts(DeploymentKey("a"))["queued"] == 3


def test_a_line_without_a_slot_gets_that_of_the_predictor_that_was_idle_longest() -> None:
    schedule = Schedule(2)
    first, _ = running(schedule, "a")
    second, _ = running(schedule, "b")
    schedule.done(second)
    schedule.done(first)
    _, steps = submitted(schedule, "c")
    assert steps == [Stop(second)]
    (start,) = schedule.ended(second, "it was told to")
    assert isinstance(start, Start)
    assert start.key.model == "c"


def test_a_busy_line_gives_its_slot_to_a_request_that_came_before_its_next_one() -> None:
    schedule = Schedule(1)
    predictor, _ = running(schedule, "a")
    waiting, steps = submitted(schedule, "b")
    assert steps == []
    submitted(schedule, "a")
    assert schedule.done(predictor) == [Stop(predictor)]
    (start,) = schedule.ended(predictor, "it was told to")
    assert isinstance(start, Start)
    assert start.key.model == "b"
    assert schedule.ready(start.predictor) == [Run(start.predictor, (waiting,))]
    assert schedule.done(start.predictor) == [Stop(start.predictor)], "now the first line's request is older"


def test_a_busy_line_keeps_its_slot_for_a_request_that_came_first() -> None:
    schedule = Schedule(1)
    predictor, _ = running(schedule, "a")
    own, _ = submitted(schedule, "a")
    submitted(schedule, "b")
    assert schedule.done(predictor) == [Run(predictor, (own,))]
    assert schedule.done(predictor) == [Stop(predictor)]


def test_a_model_that_cannot_be_loaded_fails_all_that_waits_for_it() -> None:
    schedule = Schedule(4)
    first, (start,) = submitted(schedule)
    second, _ = submitted(schedule)
    assert isinstance(start, Start)
    error = ModelNotFoundError("gone")
    assert schedule.failed(start.predictor, error) == [
        Stop(start.predictor),
        Fail(first, error),
        Fail(second, error),
    ]
    assert schedule.ended(start.predictor, "it was told to") == []


def test_requests_stay_if_another_predictor_of_their_model_runs() -> None:
    schedule = Schedule(4)
    limits = Limits(instances=2)
    _, (start,) = submitted(schedule, limits=limits)
    assert isinstance(start, Start)
    schedule.ready(start.predictor)
    _, (other,) = submitted(schedule, limits=limits)
    assert isinstance(other, Start)
    failed = schedule.failed(other.predictor, ModelNotFoundError("gone"))
    assert not any(isinstance(step, Fail) for step in failed)


def test_a_predictor_that_dies_fails_its_run_and_the_next_request_starts_another() -> None:
    schedule = Schedule(4)
    predictor, job = running(schedule)
    waiting, _ = submitted(schedule)
    fail, start = schedule.ended(predictor, "it was ended by SIGSEGV")
    assert isinstance(fail, Fail)
    assert fail.job is job
    assert isinstance(fail.error, PredictorError)
    assert str(fail.error) == "the predictor of 'a' ended: it was ended by SIGSEGV"
    assert isinstance(start, Start)
    assert schedule.ready(start.predictor) == [Run(start.predictor, (waiting,))]


@pytest.mark.parametrize("tenant", ["", "blue"])
def test_errors_name_the_model_and_not_the_key(tenant: str) -> None:
    schedule = Schedule(1)
    first = Job(DeploymentKey("m", "0123456789ab", tenant=tenant))
    schedule.submit(first, Limits(queue=1))
    with pytest.raises(BusyError, match="requests for 'm' wait already"):
        schedule.submit(Job(first.key), Limits(queue=1))
    steps = schedule.ended(1, "it was ended by SIGKILL")
    assert [str(each.error) for each in steps if isinstance(each, Fail)] == [
        "the predictor of 'm' ended: it was ended by SIGKILL"
    ]


def test_an_idle_predictor_ends_with_its_keep_alive_unless_it_was_used_since() -> None:
    schedule = Schedule(4)
    predictor, _ = running(schedule)
    schedule.done(predictor)
    first = schedule.idles(predictor)
    assert first is not None
    submitted(schedule)
    schedule.done(predictor)
    assert schedule.expire(predictor, first) == []
    second = schedule.idles(predictor)
    assert second is not None
    assert schedule.expire(predictor, second) == [Stop(predictor)]


def test_a_predictor_that_loads_for_a_request_that_is_gone_gives_its_slot_up() -> None:
    schedule = Schedule(1)
    job, (start,) = submitted(schedule, "a")
    assert isinstance(start, Start)
    assert schedule.cancel(job) == []
    assert submitted(schedule, "b")[1] == [Stop(start.predictor)]
    (other,) = schedule.ended(start.predictor, "it was told to")
    assert isinstance(other, Start)
    assert other.key.model == "b"


def test_an_idle_predictor_that_is_lost_gets_no_more_requests() -> None:
    schedule = Schedule(4)
    predictor, _ = running(schedule)
    schedule.done(predictor)
    assert schedule.lost(predictor) == []
    _, (start,) = submitted(schedule)
    assert isinstance(start, Start)
    assert schedule.ended(predictor, "it was killed") == []


def test_a_cancelled_request_is_not_run() -> None:
    schedule = Schedule(4)
    predictor, job = running(schedule)
    waiting, _ = submitted(schedule)
    assert schedule.cancel(waiting) == []
    assert schedule.cancel(waiting) is None
    assert schedule.cancel(job) is None, "it runs already"
    assert schedule.done(predictor) == []


def test_retired_predictors_end_when_they_finish_and_the_queue_is_served_first() -> None:
    schedule = Schedule(4)
    predictor, _ = running(schedule)
    assert schedule.retire(DeploymentKey("a")) == []
    assert schedule.done(predictor) == [Stop(predictor)]
    idle, _ = running(schedule, "b")
    schedule.done(idle)
    assert schedule.retire(DeploymentKey("b")) == [Stop(idle)]
    assert schedule.retire(DeploymentKey("unknown")) == []


# -- batches -----------------------------------------------------------------------------------------------------------


def test_requests_of_one_kind_run_together_up_to_the_batch() -> None:
    schedule = Schedule(4)
    first = Job(DeploymentKey("a"), rows=1, group="x")
    (start,) = schedule.submit(first, BATCHED)
    assert isinstance(start, Start)
    second, third = Job(DeploymentKey("a"), rows=3, group="x"), Job(DeploymentKey("a"), rows=1, group="x")
    schedule.submit(second, BATCHED)
    schedule.submit(third, BATCHED)
    assert schedule.ready(start.predictor) == [Run(start.predictor, (first, second))]
    assert schedule.done(start.predictor) == [Run(start.predictor, (third,))]


def test_requests_of_another_kind_do_not_join_and_are_not_overtaken() -> None:
    schedule = Schedule(4)
    jobs = [Job(DeploymentKey("a"), group=kind) for kind in "xyx"]
    (start,) = schedule.submit(jobs[0], BATCHED)
    assert isinstance(start, Start)
    for job in jobs[1:]:
        schedule.submit(job, BATCHED)
    runs = [schedule.ready(start.predictor), schedule.done(start.predictor), schedule.done(start.predictor)]
    assert runs == [[Run(start.predictor, (job,))] for job in jobs]


def test_a_request_waits_for_others_until_it_is_batch_ready_or_the_batch_is_full() -> None:
    schedule = Schedule(4)
    predictor, _ = running(schedule)
    schedule.done(predictor)
    first = Job(DeploymentKey("a"), group="x", batch_ready=False)
    assert schedule.submit(first, BATCHED) == []
    assert schedule.mark_ready(first) == [Run(predictor, (first,))]
    schedule.done(predictor)
    second, third = (
        Job(DeploymentKey("a"), rows=2, group="x", batch_ready=False),
        Job(DeploymentKey("a"), rows=2, group="x", batch_ready=False),
    )
    assert schedule.submit(second, BATCHED) == []
    assert schedule.submit(third, BATCHED) == [Run(predictor, (second, third))]
    assert schedule.mark_ready(second) == []


def test_a_predictor_that_finds_no_room_has_the_longest_idle_one_end() -> None:
    schedule = Schedule(4)
    first, _ = running(schedule, "a")
    second, _ = running(schedule, "b")
    assert schedule.give_way(DeploymentKey("a")) == [], "both are busy"
    schedule.done(second)
    schedule.done(first)
    assert schedule.give_way(DeploymentKey("a")) == [Stop(second)]
    schedule.validate()
    assert schedule.give_way(DeploymentKey("a")) == [Stop(first)]
    assert schedule.give_way(DeploymentKey("a")) == []
    assert schedule.ended(second, "it gave way") == []
    schedule.validate()


def test_a_predictor_loads_for_a_request_that_is_about_to_come() -> None:
    schedule = Schedule(1)
    (start,) = schedule.expect(DeploymentKey("a"), ONE)
    assert isinstance(start, Start)
    assert schedule.expect(DeploymentKey("a"), ONE) == [], "one is enough"
    assert schedule.ready(start.predictor) == []
    job, steps = submitted(schedule)
    assert steps == [Run(start.predictor, (job,))]
    assert schedule.expect(DeploymentKey("b"), ONE) == [], "there is no slot"
    schedule.validate()


def test_a_predictor_for_a_request_that_did_not_come_gives_its_slot_up() -> None:
    schedule = Schedule(1)
    (start,) = schedule.expect(DeploymentKey("a"), ONE)
    assert isinstance(start, Start)
    _, steps = submitted(schedule, "b")
    assert steps == [Stop(start.predictor)]


def test_an_expected_predictor_of_a_line_that_is_retired_ends() -> None:
    schedule = Schedule(2)
    (start,) = schedule.expect(DeploymentKey("a"), ONE)
    assert isinstance(start, Start)
    assert schedule.retire(DeploymentKey("a")) == []
    assert schedule.ready(start.predictor) == [Stop(start.predictor)]


def test_a_broken_book_is_named() -> None:
    schedule = Schedule(1)
    running(schedule)
    schedule._slots[""].stopping = 1
    with pytest.raises(InvariantError, match="counted wrongly"):
        schedule.validate()


# -- every order of events ---------------------------------------------------------------------------------------------

LINES = {"a": Limits(1, 4, most=3), "b": Limits(2, 4, 3), "c": Limits(1, 4, 3, most=2), "d": Limits(3, 4)}


class WorkerPool(RuleBasedStateMachine):
    """Carries out steps late and in any order, with a ledger of its own: each job is answered once, slots suffice."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 2
        self.schedule = Schedule(self.most)
        self.loading: dict[int, str] = {}
        self.idle: set[int] = set()
        self.runs: dict[int, tuple[Job, ...]] = {}
        self.stopping: set[int] = set()
        self.waiting: list[Job] = []
        self.told: Counter[Job] = Counter()

    def do(self, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, Start):
                self.loading[step.predictor] = step.key.model
            elif isinstance(step, Stop):
                self.loading.pop(step.predictor, None)
                self.idle.discard(step.predictor)
                assert step.predictor not in self.runs, "a predictor is stopped in the middle of a run"
                self.stopping.add(step.predictor)
            elif isinstance(step, Run):
                assert step.predictor in self.idle, "a predictor runs that is not free"
                self.idle.remove(step.predictor)
                self.runs[step.predictor] = step.jobs
                for job in step.jobs:
                    self.waiting.remove(job)
            else:
                self.tell(step.job)
                if step.job in self.waiting:
                    self.waiting.remove(step.job)

    def tell(self, job: Job) -> None:
        self.told[job] += 1
        assert self.told[job] == 1, "a client is told twice"

    @rule()
    def give_way(self) -> None:
        self.do(self.schedule.give_way(DeploymentKey("a")))

    @rule(line=st.sampled_from(sorted(LINES)), batch_ready=st.booleans())
    def submit(self, line: str, batch_ready: bool) -> None:
        job = Job(DeploymentKey(line), group="x", batch_ready=batch_ready or not LINES[line].batch)
        self.waiting.append(job)
        try:
            steps = self.schedule.submit(job, LINES[line])
        except BusyError:
            self.waiting.remove(job)
            return
        self.do(steps)

    @rule(line=st.sampled_from(sorted(LINES)))
    def expect(self, line: str) -> None:
        self.do(self.schedule.expect(DeploymentKey(line), LINES[line]))

    @rule(line=st.sampled_from(sorted(LINES)), ahead=st.booleans())
    def extend(self, line: str, ahead: bool) -> None:
        self.do(self.schedule.extend(DeploymentKey(line), ahead=ahead))

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), works=st.booleans())
    def load(self, data: st.DataObject, works: bool) -> None:
        predictor = data.draw(st.sampled_from(sorted(self.loading)))
        if works:
            del self.loading[predictor]
            self.idle.add(predictor)
            self.do(self.schedule.ready(predictor))
        else:
            self.do(self.schedule.failed(predictor, ModelNotFoundError("gone")))

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        predictor = data.draw(st.sampled_from(sorted(self.runs)))
        for job in self.runs.pop(predictor):
            self.tell(job)
        self.idle.add(predictor)
        self.do(self.schedule.done(predictor))

    @precondition(lambda self: self.stopping)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        predictor = data.draw(st.sampled_from(sorted(self.stopping)))
        self.stopping.remove(predictor)
        self.do(self.schedule.ended(predictor, "it was told to"))
        assert self.schedule.ended(predictor, "again") == []

    @precondition(lambda self: self.loading or self.idle or self.runs)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        predictor = data.draw(st.sampled_from(sorted({*self.loading, *self.idle, *self.runs})))
        self.loading.pop(predictor, None)
        self.idle.discard(predictor)
        self.runs.pop(predictor, ())
        self.do(self.schedule.ended(predictor, "it crashed"))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), ripens=st.booleans())
    def raise_priority_or_hang_up(self, data: st.DataObject, ripens: bool) -> None:
        job = self.waiting[data.draw(st.integers(0, len(self.waiting) - 1))]
        if ripens:
            self.do(self.schedule.mark_ready(job))
            return
        self.waiting.remove(job)
        steps = self.schedule.cancel(job)
        assert steps is not None
        self.do(steps)

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        predictor = data.draw(st.sampled_from(sorted(self.idle)))
        self.idle.remove(predictor)
        self.stopping.add(predictor)
        self.do(self.schedule.lost(predictor))

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        predictor = data.draw(st.sampled_from(sorted(self.idle)))
        idles = self.schedule.idles(predictor)
        assert idles is not None
        self.do(self.schedule.expire(predictor, idles))

    @rule(line=st.sampled_from(sorted(LINES)))
    def retire(self, line: str) -> None:
        self.do(self.schedule.retire(DeploymentKey(line)))

    @invariant()
    def the_books_hold(self) -> None:
        self.schedule.validate()
        assert len(self.loading) + len(self.idle) + len(self.runs) + len(self.stopping) <= self.most
        if any(job.batch_ready for job in self.waiting):
            assert self.loading or self.runs or self.stopping, "requests wait, and nothing happens"

    def teardown(self) -> None:
        """Without crashes, everything that waits is answered in the end."""
        for job in list(self.waiting):
            self.do(self.schedule.mark_ready(job))
        for _ in range(1000):
            if not self.waiting and not self.runs:
                break
            for predictor in list(self.loading):
                if predictor in self.loading:
                    del self.loading[predictor]
                    self.idle.add(predictor)
                    self.do(self.schedule.ready(predictor))
            for predictor in list(self.runs):
                for job in self.runs.pop(predictor):
                    self.tell(job)
                self.idle.add(predictor)
                self.do(self.schedule.done(predictor))
            for predictor in list(self.stopping):
                self.stopping.remove(predictor)
                self.do(self.schedule.ended(predictor, "it was told to"))
        left = {name: self.schedule.counts(DeploymentKey(name)) for name in LINES}
        assert not self.waiting, f"a request is never answered: {self.waiting}, {left}"


TestEveryOrderOfEvents = WorkerPool.TestCase
TestEveryOrderOfEvents.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_busy_predictor_of_a_retired_line_ends_though_a_request_waits() -> None:
    schedule = Schedule(4)
    predictor, _ = running(schedule)
    assert schedule.retire(DeploymentKey("a")) == []
    job, steps = submitted(schedule)
    assert steps == []
    stop, start = schedule.done(predictor)
    assert stop == Stop(predictor)
    assert isinstance(start, Start)
    assert schedule.ready(start.predictor) == [Run(start.predictor, (job,))]


def test_a_predictor_is_starting_until_it_has_loaded_or_is_told_to_end() -> None:
    schedule = Schedule(2)
    _, (start,) = submitted(schedule)
    (other,) = schedule.expect(DeploymentKey("b"), ONE)
    assert isinstance(start, Start)
    assert isinstance(other, Start)
    assert [schedule.is_starting(each) for each in (start.predictor, other.predictor, 99)] == [True, True, False]
    schedule.ready(start.predictor)
    submitted(schedule, "c")  # takes the slot of the one that loads for no request
    assert [schedule.is_starting(each) for each in (start.predictor, other.predictor)] == [False, False]


def test_a_predictor_for_what_waited_when_its_line_was_retired_ends_after_that() -> None:
    schedule = Schedule(4)
    predictor, _ = running(schedule)
    job, _ = submitted(schedule)
    assert schedule.retire(DeploymentKey("a")) == []
    assert schedule.done(predictor) == [Run(predictor, (job,))]
    assert schedule.done(predictor) == [Stop(predictor)], "no request came since"


def test_a_request_after_the_retirement_is_answered_by_a_new_predictor() -> None:
    schedule = Schedule(4)
    predictor, _ = running(schedule)
    waited, _ = submitted(schedule)
    schedule.retire(DeploymentKey("a"))
    last, _ = submitted(schedule)
    stop, start = schedule.done(predictor)
    assert stop == Stop(predictor)
    assert isinstance(start, Start)
    assert schedule.ready(start.predictor) == [Run(start.predictor, (waited,))]
    assert schedule.done(start.predictor) == [Run(start.predictor, (last,))]
    assert schedule.done(start.predictor) == [], "it stays, for the requests after the retirement"


def test_an_idle_predictor_that_was_retired_ends_when_another_request_comes() -> None:
    schedule = Schedule(4)
    first = Job(DeploymentKey("a"), rows=1, group="x")
    (start,) = schedule.submit(first, BATCHED)
    assert isinstance(start, Start)
    schedule.ready(start.predictor)
    unripe = Job(DeploymentKey("a"), rows=1, group="x", batch_ready=False)
    assert schedule.submit(unripe, BATCHED) == []
    assert schedule.retire(DeploymentKey("a")) == []
    assert schedule.done(start.predictor) == [], "it waits for the batch to fill"
    steps = schedule.submit(Job(DeploymentKey("a"), rows=1, group="y", batch_ready=False), BATCHED)
    assert Stop(start.predictor) in steps
