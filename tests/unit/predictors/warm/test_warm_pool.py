"""Templates learn, are replaced when they are unfit, and a predictor comes from somewhere in any case."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from looking import WAIT_S, wait_until
from made_environments import put
from nursing import NUMPY, OTHER, nurse, until
from trims_predictors.children.launcher import Environment
from trims_predictors.children.template_process import Template
from trims_predictors.warm import reclaimer
from trims_predictors.warm.reclaim_policy import Limits

from trims.core.errors import CapacityError, DrainingError, InUseError, PredictorError
from trims.environments.environment_store import EnvironmentStore
from trims.testing.descriptors import few_descriptors

if TYPE_CHECKING:
    from trims_predictors.warm.warm_pool import WarmPool

    from trims.daemon.main import Daemon


def test_a_request_whose_template_is_killed_is_served_by_the_next_template(modules: Path) -> None:
    async def work(warm_pool: WarmPool) -> None:
        await (await warm_pool.take(NUMPY)).end()
        before = warm_pool._inventory.templates[NUMPY]
        os.kill(before.pid, signal.SIGKILL)
        predictor = await warm_pool.take(NUMPY)
        assert predictor.how == "forked"
        assert warm_pool._inventory.templates[NUMPY] is not before
        await predictor.end()

    nurse(modules, work)


def test_the_end_of_a_predictor_that_is_heard_behind_its_beginning_is_known(modules: Path) -> None:
    (modules / "dies.py").write_text("import os\nos.register_at_fork(after_in_child=lambda: os._exit(3))\n")

    async def work(warm_pool: WarmPool) -> None:
        template = Template(warm_pool._launcher, NUMPY, ["dies"])
        await template.ready
        forking = asyncio.ensure_future(template.fork())
        while not template._answers:
            await asyncio.sleep(0)
        # without a turn of the loop, until both messages are there
        assert select.select([template._child.socket], [], [], WAIT_S)[0]
        status = Path(f"/proc/{template.pid}/task/{template.pid}")
        wait_until(lambda: not (status / "children").read_text(), "the fork has ended and was buried")
        wait_until(lambda: ") S" in (status / "stat").read_text(), "the template has reported it")
        assert await (await forking).ended == "it exited with status 3"
        assert not template.predictors
        template.retire()
        await template.gone

    nurse(modules, work)


def test_a_predictor_is_spawned_where_its_template_may_not_be_forked(
    modules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(warm_pool: WarmPool) -> None:
        warm_pool._learner.learned[NUMPY] = ["spoils"]
        predictor = await warm_pool.take(NUMPY)
        assert predictor.how == "spawned"
        assert await predictor.end() == "it exited with status 0"

    nurse(modules, work)
    assert "is spawned, not forked: the template cannot be forked: it has 2 threads" in caplog.text


def test_where_no_template_can_be_forked_spares_are_programs_that_have_imported_all(
    daemon: Daemon, modules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (modules / "tells.py").write_text(
        "import os, pathlib; pathlib.Path(__file__).with_suffix('.pid').write_text(str(os.getpid()))"
    )

    async def work(warm_pool: WarmPool) -> None:
        warm_pool._learner.learned[NUMPY] = ["spoils", "no_such_module", "tells"]
        first = await warm_pool.take(NUMPY)
        assert first.how == "spawned"
        for _ in range(3):
            warm_pool.tend(NUMPY)
            await until(lambda: warm_pool.spares() == {"numpy": 1})
            spare = await warm_pool.take(NUMPY)
            assert (spare.how, warm_pool.spares()) == ("spare", {"numpy": 0})
            assert int((modules / "tells.pid").read_text()) == spare.pid, "it has imported what templates learn"
            assert await spare.end() == "it exited with status 0"
        assert warm_pool.templates()["numpy"]["started"] == 1, "one template has found out"
        await first.end()

    nurse(daemon.config.runtime_dir, work, spares=1)
    assert caplog.text.count("is spawned, not forked") == 1


def test_an_environment_that_cannot_be_started_is_told(folder: Path) -> None:
    async def work(warm_pool: WarmPool) -> None:
        with pytest.raises(PredictorError, match=r"/no/python cannot be started"):
            await warm_pool.take(Environment("numpy", "/no/python"))
        predictor = await warm_pool.take(Environment("numpy", "/bin/false"))
        with pytest.raises(PredictorError, match="exited with status 1"):
            await predictor.ask(
                {"op": "prepare", "modules": [], "import": False, "threads": 1, "pages": []}, deadline_s=30
            )

    nurse(folder, work)


@pytest.mark.parametrize("left", range(7))
def test_without_descriptors_no_predictor_is_started_and_the_remedy_is_told(folder: Path, left: int) -> None:
    async def work(warm_pool: WarmPool) -> None:
        await (await warm_pool.take(NUMPY)).end()
        with few_descriptors(left=left), pytest.raises(CapacityError, match=r"no descriptor left.*`ulimit -n`"):
            await warm_pool.take(NUMPY)
        predictor = await warm_pool.take(NUMPY)
        assert predictor.how == "forked"
        await predictor.end()

    nurse(folder, work)


def test_an_environment_of_another_interpreter_has_our_packages_and_its_own(folder: Path) -> None:
    async def work(warm_pool: WarmPool) -> None:
        predictor = await warm_pool.take(Environment("numpy", sys.executable))
        assert predictor.how == "forked"
        await predictor.end()

    nurse(folder, work)


@pytest.mark.parametrize("turns", [0, 1, 3, 10, 30, 100])
def test_a_warm_pool_that_closes_while_predictors_begin_leaves_none(folder: Path, turns: int) -> None:
    async def work(warm_pool: WarmPool) -> None:
        warm_pool.tend(NUMPY)
        takes = [asyncio.ensure_future(warm_pool.take(NUMPY)) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0.01)
        await warm_pool.close()
        for taken in await asyncio.gather(*takes, return_exceptions=True):
            assert isinstance(taken, DrainingError) or taken.ended.done()
        with pytest.raises(DrainingError, match="starts no predictors"):
            await warm_pool.take(NUMPY)

    nurse(folder, work, spares=2)


def test_a_predictor_that_stays_after_its_kill_keeps_no_descriptor(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trims_predictors.warm.warm_pool._BURIAL_S", 0.05)

    async def work(warm_pool: WarmPool) -> int:
        predictor = await warm_pool.take(NUMPY)
        monkeypatch.setattr("signal.pidfd_send_signal", lambda *_: None)
        await warm_pool.close()
        assert await predictor.ended == "it stays, though it was killed"
        return predictor.pid

    pid = nurse(folder, work)
    assert f"predictor process {pid} has not ended 0.05 s after SIGKILL" in caplog.text


def test_templates_are_counted_when_they_start_and_when_they_have_ended(folder: Path) -> None:
    async def work(warm_pool: WarmPool) -> None:
        def counted() -> tuple[int, int]:
            found = warm_pool.templates()["numpy"]
            return found["started"], found["ended"]

        assert warm_pool.templates() == {}
        await (await warm_pool.take(NUMPY)).end()
        assert counted() == (1, 0)
        warm_pool._inventory.templates[NUMPY].close("the test ends it")
        assert counted() == (1, 1)
        await (await warm_pool.take(NUMPY)).end()
        assert counted() == (2, 1)

    nurse(folder, work)


# fault (templates): no daemon while a spare is prepared -> a warning in the log
def test_a_spare_that_cannot_be_prepared_is_ended(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(warm_pool: WarmPool) -> None:
        warm_pool.keep(NUMPY)
        await until(lambda: "no spare predictor for numpy: no daemon answers at" in caplog.text)
        await until(lambda: not warm_pool._living)
        assert not warm_pool._inventory.spares

    nurse(folder, work, spares=1)


# -- templates come and go by use -----------------------------------------------------------------------------------


@pytest.fixture
def counts_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaimer, "_PAUSE_S", 0.01)


def running(warm_pool: WarmPool) -> int:
    found = warm_pool.templates().get("numpy", {"started": 0, "ended": 0})
    return found["started"] - found["ended"]


async def predictor_of(warm_pool: WarmPool, environment: Environment = NUMPY) -> Any:
    predictor = await warm_pool.take(environment)
    assert predictor.how == "forked"
    return predictor


@pytest.mark.usefixtures("counts_often")
def test_a_template_without_use_ends_and_the_next_request_starts_it_again(folder: Path) -> None:
    async def work(warm_pool: WarmPool) -> None:
        for started in (1, 2):
            await (await predictor_of(warm_pool)).end()
            await until(lambda: not running(warm_pool))
            assert warm_pool.templates()["numpy"] == {"started": started, "ended": started, "bytes": 0}

    nurse(folder, work, limits=Limits(0.0))


@pytest.mark.usefixtures("counts_often")
def test_an_environment_may_be_removed_once_nothing_runs_in_it_any_more(folder: Path) -> None:
    env_store = EnvironmentStore(folder / "environments")
    made = put(env_store.folder, numpy="2.0")

    async def work(warm_pool: WarmPool) -> None:
        environment = Environment("numpy", str(made.python))
        first, second = await warm_pool.take(environment), await warm_pool.take(environment)
        await first.end()
        with pytest.raises(InUseError, match=f"{made.name} is in use by"):
            env_store.remove(made.name)
        await second.end()
        await until(lambda: not running(warm_pool))
        await until(lambda: not warm_pool._launcher._holds)
        env_store.remove(made.name)

    nurse(folder, work, limits=Limits(0.0))


@pytest.mark.usefixtures("counts_often")
def test_a_template_over_the_bound_counts_until_it_goes_with_its_last_predictor(folder: Path) -> None:
    async def work(warm_pool: WarmPool) -> None:
        first, second = await predictor_of(warm_pool), await predictor_of(warm_pool)
        await until(lambda: warm_pool._inventory.leaving)
        assert await first.end() == "it exited with status 0"
        assert (running(warm_pool), warm_pool._reclaimer.total_bytes > 0) == (1, True)
        third = await predictor_of(warm_pool)
        assert warm_pool.templates()["numpy"]["started"] == 1, "it is used again, and not a second one"
        for predictor in (second, third):
            assert await predictor.end() == "it exited with status 0"
        await until(lambda: not running(warm_pool))

    nurse(folder, work, limits=Limits(None, 1))


# fault (templates): templates are over `--template-memory` -> slower starts; those with living predictors stay
@pytest.mark.usefixtures("counts_often")
def test_requests_of_more_environments_than_fit_are_all_answered(folder: Path) -> None:
    async def work(warm_pool: WarmPool) -> None:
        for _ in range(5):
            taken = await asyncio.gather(*(warm_pool.take(each) for each in (NUMPY, OTHER, NUMPY)))
            for predictor in taken:
                assert predictor.how == "forked"
                assert await predictor.end() == "it exited with status 0"

    nurse(folder, work, limits=Limits(0.0, 1))


# fault (templates): a template is killed at any moment -> nothing; predictors are `spawned` until the next template
@pytest.mark.usefixtures("counts_often")
@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8, 16, 32])
def test_a_template_that_is_killed_at_any_moment_costs_no_request(folder: Path, turns: int) -> None:
    async def work(warm_pool: WarmPool) -> None:
        taking = asyncio.ensure_future(warm_pool.take(NUMPY))
        await until(lambda: warm_pool._inventory.made)
        for _ in range(turns):
            await asyncio.sleep(0.01)
        killed = warm_pool._inventory.made[0][1]
        os.kill(killed.pid, signal.SIGKILL)
        predictor = await taking
        assert predictor.how == "forked"
        await until(lambda: killed.lost)
        again = await predictor_of(warm_pool)
        for each in (predictor, again):
            await each.end()
        await until(lambda: not running(warm_pool) and not warm_pool._launcher._holds)

    nurse(folder, work, limits=Limits(0.0, 1))


@pytest.mark.usefixtures("counts_often")
def test_a_template_that_is_killed_while_it_is_to_go_leaves_nothing(folder: Path) -> None:
    async def work(warm_pool: WarmPool) -> None:
        predictor = await predictor_of(warm_pool)
        await until(lambda: warm_pool._inventory.leaving)
        os.kill(warm_pool._inventory.made[0][1].pid, signal.SIGKILL)
        await until(lambda: not running(warm_pool))
        assert await predictor.end() == "it ended, and so did its template, which alone could tell how"
        await until(
            lambda: (
                not warm_pool._inventory.templates
                and not warm_pool._inventory.leaving
                and not warm_pool._inventory.made
            )
        )
        assert not warm_pool._living

    nurse(folder, work, limits=Limits(0.0, 1))


# fault (templates): requests, learning, limits and kills at once -> slower starts; nothing is left
@pytest.mark.usefixtures("counts_often")
@pytest.mark.parametrize("seed", range(3))
def test_requests_that_race_with_limits_learner_and_kills_leave_nothing(modules: Path, seed: int) -> None:
    choose = random.Random(seed)

    async def client(warm_pool: WarmPool) -> None:
        for _ in range(6):
            environment = choose.choice((NUMPY, OTHER))
            predictor = await warm_pool.take(environment)
            warm_pool.teach(environment, [choose.choice(("harmless", "spoils", "exits"))])
            await asyncio.sleep(choose.random() / 20)
            if choose.random() < 0.3:
                predictor.kill("the test ends it")
            await predictor.end()
            for _, template in choose.sample(warm_pool._inventory.made, min(1, len(warm_pool._inventory.made))):
                if choose.random() < 0.3 and template.lost is None:
                    os.kill(template.pid, signal.SIGKILL)

    async def work(warm_pool: WarmPool) -> None:
        await asyncio.gather(*(client(warm_pool) for _ in range(3)))
        warm_pool._reclaimer.limits = Limits(0.0)
        warm_pool._reclaimer.wake()
        await until(
            lambda: (
                not (
                    warm_pool._learner.running()
                    or warm_pool._inventory.templates
                    or warm_pool._living
                    or warm_pool._inventory.made
                )
            )
        )
        assert not warm_pool._launcher._holds
        assert running(warm_pool) == 0

    limits = (Limits(0.0, 1), Limits(0.05, 30 << 20), Limits(None, 30 << 20))
    nurse(modules, work, limits=limits[seed])
