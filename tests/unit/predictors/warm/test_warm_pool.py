"""Templates learn, are replaced when they are spoilt, and a predictor comes from somewhere in any case."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from made_environments import put
from nursing import NUMPY, OTHER, nurse, until
from trims_predictors.children.launcher import Environment
from trims_predictors.warm import reclaimer
from trims_predictors.warm.reclaim_policy import Limits

from trims.core.errors import CapacityError, DrainingError, InUseError, PredictorError
from trims.environments.environment_store import Shelf
from trims.testing.descriptors import few_descriptors

if TYPE_CHECKING:
    from pathlib import Path

    from trims_predictors.warm.warm_pool import Nursery

    from trims.daemon.main import Daemon


def test_a_request_whose_template_is_killed_is_served_by_the_next_template(modules: Path) -> None:
    async def work(nursery: Nursery) -> None:
        await (await nursery.take(NUMPY)).end()
        before = nursery._stock.templates[NUMPY]
        os.kill(before.pid, signal.SIGKILL)
        predictor = await nursery.take(NUMPY)
        assert predictor.how == "forked"
        assert nursery._stock.templates[NUMPY] is not before
        await predictor.end()

    nurse(modules, work)


def test_a_predictor_is_spawned_where_its_template_may_not_be_forked(
    modules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(nursery: Nursery) -> None:
        nursery._lessons.learned[NUMPY] = ["spoils"]
        predictor = await nursery.take(NUMPY)
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

    async def work(nursery: Nursery) -> None:
        nursery._lessons.learned[NUMPY] = ["spoils", "no_such_module", "tells"]
        first = await nursery.take(NUMPY)
        assert first.how == "spawned"
        for _ in range(3):
            nursery.tend(NUMPY)
            await until(lambda: nursery.spares() == {"numpy": 1})
            spare = await nursery.take(NUMPY)
            assert (spare.how, nursery.spares()) == ("spare", {"numpy": 0})
            assert int((modules / "tells.pid").read_text()) == spare.pid, "it has imported what templates learn"
            assert await spare.end() == "it exited with status 0"
        assert nursery.templates()["numpy"]["started"] == 1, "one template has found out"
        await first.end()

    nurse(daemon.config.runtime_dir, work, spares=1)
    assert caplog.text.count("is spawned, not forked") == 1


def test_an_environment_that_cannot_be_started_is_told(folder: Path) -> None:
    async def work(nursery: Nursery) -> None:
        with pytest.raises(PredictorError, match=r"/no/python cannot be started"):
            await nursery.take(Environment("numpy", "/no/python"))
        predictor = await nursery.take(Environment("numpy", "/bin/false"))
        with pytest.raises(PredictorError, match="exited with status 1"):
            await predictor.ask(
                {"op": "prepare", "modules": [], "import": False, "threads": 1, "pages": []}, deadline_s=30
            )

    nurse(folder, work)


@pytest.mark.parametrize("left", range(7))
def test_without_descriptors_no_predictor_is_started_and_the_remedy_is_told(folder: Path, left: int) -> None:
    async def work(nursery: Nursery) -> None:
        await (await nursery.take(NUMPY)).end()
        with few_descriptors(left=left), pytest.raises(CapacityError, match=r"no descriptor left.*`ulimit -n`"):
            await nursery.take(NUMPY)
        predictor = await nursery.take(NUMPY)
        assert predictor.how == "forked"
        await predictor.end()

    nurse(folder, work)


def test_an_environment_of_another_interpreter_has_our_packages_and_its_own(folder: Path) -> None:
    async def work(nursery: Nursery) -> None:
        predictor = await nursery.take(Environment("numpy", sys.executable))
        assert predictor.how == "forked"
        await predictor.end()

    nurse(folder, work)


@pytest.mark.parametrize("turns", [0, 1, 3, 10, 30, 100])
def test_a_nursery_that_closes_while_predictors_begin_leaves_none(folder: Path, turns: int) -> None:
    async def work(nursery: Nursery) -> None:
        nursery.tend(NUMPY)
        takes = [asyncio.ensure_future(nursery.take(NUMPY)) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0.01)
        await nursery.close()
        for taken in await asyncio.gather(*takes, return_exceptions=True):
            assert isinstance(taken, DrainingError) or taken.ended.done()
        with pytest.raises(DrainingError, match="starts no predictors"):
            await nursery.take(NUMPY)

    nurse(folder, work, spares=2)


def test_a_predictor_that_stays_after_its_kill_keeps_no_descriptor(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trims_predictors.warm.warm_pool._BURIAL_S", 0.05)

    async def work(nursery: Nursery) -> int:
        predictor = await nursery.take(NUMPY)
        monkeypatch.setattr("signal.pidfd_send_signal", lambda *_: None)
        await nursery.close()
        assert await predictor.ended == "it stays, though it was killed"
        return predictor.pid

    pid = nurse(folder, work)
    assert f"predictor process {pid} has not ended 0.05 s after SIGKILL" in caplog.text


def test_templates_are_counted_when_they_start_and_when_they_have_ended(folder: Path) -> None:
    async def work(nursery: Nursery) -> None:
        def counted() -> tuple[int, int]:
            found = nursery.templates()["numpy"]
            return found["started"], found["ended"]

        assert nursery.templates() == {}
        await (await nursery.take(NUMPY)).end()
        assert counted() == (1, 0)
        nursery._stock.templates[NUMPY].close("the test ends it")
        assert counted() == (1, 1)
        await (await nursery.take(NUMPY)).end()
        assert counted() == (2, 1)

    nurse(folder, work)


def test_a_spare_that_cannot_be_prepared_is_ended(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(nursery: Nursery) -> None:
        nursery.keep(NUMPY)
        await until(lambda: "no spare predictor for numpy: no daemon answers at" in caplog.text)
        await until(lambda: not nursery._living)
        assert not nursery._stock.spares

    nurse(folder, work, spares=1)


# -- templates come and go by use -----------------------------------------------------------------------------------


@pytest.fixture
def counts_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaimer, "_PAUSE_S", 0.01)


def running(nursery: Nursery) -> int:
    found = nursery.templates().get("numpy", {"started": 0, "ended": 0})
    return found["started"] - found["ended"]


async def predictor_of(nursery: Nursery, environment: Environment = NUMPY) -> Any:
    predictor = await nursery.take(environment)
    assert predictor.how == "forked"
    return predictor


@pytest.mark.usefixtures("counts_often")
def test_a_template_without_use_ends_and_the_next_request_starts_it_again(folder: Path) -> None:
    async def work(nursery: Nursery) -> None:
        for started in (1, 2):
            await (await predictor_of(nursery)).end()
            await until(lambda: not running(nursery))
            assert nursery.templates()["numpy"] == {"started": started, "ended": started, "bytes": 0}

    nurse(folder, work, limits=Limits(0.0))


@pytest.mark.usefixtures("counts_often")
def test_a_template_with_a_living_predictor_is_in_use_for_as_long_as_that_lives(folder: Path) -> None:
    async def work(nursery: Nursery) -> None:
        first, second = await predictor_of(nursery), await predictor_of(nursery)
        await first.end()
        await until(lambda: nursery.templates()["numpy"]["bytes"])
        await asyncio.sleep(0.1)
        assert running(nursery) == 1
        await second.end()
        await until(lambda: not running(nursery))

    nurse(folder, work, limits=Limits(0.0))


@pytest.mark.usefixtures("counts_often")
def test_a_template_that_is_to_be_ready_stays_without_use_until_its_memory_is_needed(folder: Path) -> None:
    async def work(nursery: Nursery) -> None:
        nursery.keep(NUMPY)
        await (await predictor_of(nursery)).end()
        await until(lambda: nursery.templates()["numpy"]["bytes"])
        await asyncio.sleep(0.1)
        assert running(nursery) == 1
        nursery._upkeep.limits = Limits(0.0, 1)
        nursery._upkeep.stir()
        await until(lambda: not running(nursery))

    nurse(folder, work, limits=Limits(0.0))


@pytest.mark.usefixtures("counts_often")
def test_an_environment_may_be_removed_once_nothing_runs_in_it_any_more(folder: Path) -> None:
    shelf = Shelf(folder / "environments")
    made = put(shelf.folder, numpy="2.0")

    async def work(nursery: Nursery) -> None:
        environment = Environment("numpy", str(made.python))
        first, second = await nursery.take(environment), await nursery.take(environment)
        await first.end()
        with pytest.raises(InUseError, match=f"{made.name} is in use by"):
            shelf.remove(made.name)
        await second.end()
        await until(lambda: not running(nursery))
        await until(lambda: not nursery._launcher._holds)
        shelf.remove(made.name)

    nurse(folder, work, limits=Limits(0.0))


@pytest.mark.usefixtures("counts_often")
def test_over_the_bound_the_template_used_least_recently_goes_and_the_other_stays(folder: Path) -> None:
    async def work(nursery: Nursery) -> None:
        for environment in (OTHER, NUMPY):
            await (await predictor_of(nursery, environment)).end()
        await until(lambda: all(each.pid in nursery._upkeep.counted for each in nursery._stock.templates.values()))
        nursery._upkeep.limits = Limits(None, nursery._upkeep.total_bytes * 3 // 4)  # one of them, and not both
        nursery._upkeep.stir()
        await until(lambda: running(nursery) == 1)
        assert list(nursery._stock.templates) == [NUMPY]
        await (await predictor_of(nursery, OTHER)).end()
        await until(lambda: running(nursery) == 1)
        assert list(nursery._stock.templates) == [OTHER], "it was used last"

    nurse(folder, work)


@pytest.mark.usefixtures("counts_often")
def test_a_template_over_the_bound_counts_until_it_goes_with_its_last_predictor(folder: Path) -> None:
    async def work(nursery: Nursery) -> None:
        first, second = await predictor_of(nursery), await predictor_of(nursery)
        await until(lambda: nursery._stock.leaving)
        assert await first.end() == "it exited with status 0"
        assert (running(nursery), nursery._upkeep.total_bytes > 0) == (1, True)
        third = await predictor_of(nursery)
        assert nursery.templates()["numpy"]["started"] == 1, "it is used again, and not a second one"
        for predictor in (second, third):
            assert await predictor.end() == "it exited with status 0"
        await until(lambda: not running(nursery))

    nurse(folder, work, limits=Limits(None, 1))


@pytest.mark.usefixtures("counts_often")
def test_requests_of_more_environments_than_fit_are_all_answered(folder: Path) -> None:
    async def work(nursery: Nursery) -> None:
        for _ in range(5):
            taken = await asyncio.gather(*(nursery.take(each) for each in (NUMPY, OTHER, NUMPY)))
            for predictor in taken:
                assert predictor.how == "forked"
                assert await predictor.end() == "it exited with status 0"

    nurse(folder, work, limits=Limits(0.0, 1))


@pytest.mark.usefixtures("counts_often")
@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8, 16, 32])
def test_a_template_that_is_killed_at_any_moment_costs_no_request(folder: Path, turns: int) -> None:
    async def work(nursery: Nursery) -> None:
        taking = asyncio.ensure_future(nursery.take(NUMPY))
        await until(lambda: nursery._stock.made)
        for _ in range(turns):
            await asyncio.sleep(0.01)
        killed = nursery._stock.made[0][1]
        os.kill(killed.pid, signal.SIGKILL)
        predictor = await taking
        assert predictor.how == "forked"
        await until(lambda: killed.lost)
        again = await predictor_of(nursery)
        for each in (predictor, again):
            await each.end()
        await until(lambda: not running(nursery) and not nursery._launcher._holds)

    nurse(folder, work, limits=Limits(0.0, 1))


@pytest.mark.usefixtures("counts_often")
def test_a_template_that_is_killed_while_it_is_to_go_leaves_nothing(folder: Path) -> None:
    async def work(nursery: Nursery) -> None:
        predictor = await predictor_of(nursery)
        await until(lambda: nursery._stock.leaving)
        os.kill(nursery._stock.made[0][1].pid, signal.SIGKILL)
        await until(lambda: not running(nursery))
        assert await predictor.end() == "it ended, and so did its template, which alone could tell how"
        await until(lambda: not nursery._stock.templates and not nursery._stock.leaving and not nursery._stock.made)
        assert not nursery._living

    nurse(folder, work, limits=Limits(0.0, 1))


@pytest.mark.usefixtures("counts_often")
@pytest.mark.parametrize("seed", range(3))
def test_requests_that_race_with_limits_lessons_and_kills_leave_nothing(modules: Path, seed: int) -> None:
    choose = random.Random(seed)

    async def client(nursery: Nursery) -> None:
        for _ in range(6):
            environment = choose.choice((NUMPY, OTHER))
            predictor = await nursery.take(environment)
            nursery.teach(environment, [choose.choice(("harmless", "spoils", "exits"))])
            await asyncio.sleep(choose.random() / 20)
            if choose.random() < 0.3:
                predictor.kill("the test ends it")
            await predictor.end()
            for _, template in choose.sample(nursery._stock.made, min(1, len(nursery._stock.made))):
                if choose.random() < 0.3 and template.lost is None:
                    os.kill(template.pid, signal.SIGKILL)

    async def work(nursery: Nursery) -> None:
        await asyncio.gather(*(client(nursery) for _ in range(3)))
        nursery._upkeep.limits = Limits(0.0)
        nursery._upkeep.stir()
        await until(
            lambda: (
                not (nursery._lessons.running() or nursery._stock.templates or nursery._living or nursery._stock.made)
            )
        )
        assert not nursery._launcher._holds
        assert running(nursery) == 0

    limits = (Limits(0.0, 1), Limits(0.05, 30 << 20), Limits(None, 30 << 20))
    nurse(modules, work, limits=limits[seed])
