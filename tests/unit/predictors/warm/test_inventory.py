"""What a nursery has ready is counted once each, at what the kernel says, and nothing that has gone is handed out."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from trims_predictors.children.launcher import Environment
from trims_predictors.warm.inventory import Stock
from trims_predictors.warm.memory_usage import Footprint

if TYPE_CHECKING:
    from trims_predictors.children.template_process import Template
    from trims_predictors.children.worker_process import PredictorProcess

TORCH, OTHER = Environment("torch"), Environment("torch", "/other/python")
MIB = 1 << 20


class Future:
    """Of a process's end."""

    is_done = False

    def done(self) -> bool:
        return self.is_done


def template(pid: int, *predictors: int) -> Any:
    """One process of its own, and the predictors forked from it."""
    return SimpleNamespace(pids=[pid], predictors=set(predictors), lost=None, waited_for=False, gone=Future())


def spare(pid: int, *, dying: bool = False) -> PredictorProcess:
    return cast("PredictorProcess", SimpleNamespace(pid=pid, dying=dying))


def serve(stock: Stock, made: Any, environment: Environment = TORCH) -> Template:
    stock.add(environment, made)
    stock.templates[environment] = made
    return cast("Template", made)


@pytest.fixture
def stock() -> Stock:
    return Stock()


def test_the_newest_spare_is_taken_and_those_that_die_are_passed_over(stock: Stock) -> None:
    stock.spares[TORCH] = [spare(1), spare(2), spare(3, dying=True)]
    taken = stock.take_spare(TORCH)
    assert taken is not None
    assert taken.pid == 2
    assert [each.pid for each in stock.spares[TORCH]] == [1]
    assert stock.take_spare(OTHER) is None


def test_a_spare_that_was_taken_may_end_without_harm(stock: Stock) -> None:
    first, second = spare(1), spare(2)
    stock.spares[TORCH] = [first, second]
    for ended in (second, second):
        stock.drop_spare(TORCH, ended)
    assert stock.spares == {TORCH: [first]}


def test_a_hot_spare_is_counted_until_it_is_dropped_once(stock: Stock) -> None:
    hot = spare(1)
    stock.hot[TORCH] = [hot]
    assert stock.drop_hot(hot)
    assert not stock.drop_hot(hot), "it is being ended, or was taken"


def test_a_lost_template_serves_no_more_and_is_known_until_its_processes_are_gone(stock: Stock) -> None:
    made: Any = serve(stock, template(7))
    assert stock.serving(TORCH) is made
    made.lost = "it was killed"
    assert stock.serving(TORCH) is None
    assert (stock.running(), len(stock.made)) == ([], 1)
    stock.forget_ended()
    assert len(stock.made) == 1, "it has not ended yet"
    made.gone.is_done = True
    stock.forget_ended()
    assert stock.made == []


def test_environments_of_one_framework_are_told_together(stock: Stock) -> None:
    serve(stock, template(1))
    serve(stock, template(2), OTHER)
    stock.add(TORCH, template(3))
    ended: Any = stock.made[1][1]
    ended.lost = "it was killed"
    stock.spares, stock.hot = {TORCH: [spare(4)], OTHER: [spare(5), spare(6)]}, {TORCH: [spare(7)]}
    counted = {pid: Footprint(MIB, 0) for pid in (1, 2, 3, 4, 7)}
    assert stock.spares_by_framework() == {"torch": 3}
    told = stock.templates_by_framework(counted)
    assert told == {"torch": {"started": 3, "ended": 1, "bytes": 4 * MIB}}, "what was not counted yet is not told"


def test_a_standing_tells_each_part_and_why_a_template_may_not_end(stock: Stock) -> None:
    made: Any = serve(stock, template(1, 2, 3, 4))
    made.waited_for = True
    stock.spares, stock.hot = {TORCH: [spare(2)]}, {TORCH: [spare(3)]}
    stock.kept.add(TORCH)
    stock.use(TORCH)
    counted = {1: Footprint(50, 0), 2: Footprint(5, 4), 3: Footprint(7, 6)}
    ((standing,), others) = stock.standings(counted)
    told = dataclasses.asdict(standing)
    assert told.pop("used_s") > 0
    assert told == {
        "environment": dataclasses.asdict(TORCH),
        "nbytes": 50,
        "spare_bytes": (5,),
        "hot_bytes": (7,),
        "predictors": 1,
        "waited_for": True,
        "kept": True,
        "leaving": False,
    }
    assert others == 0


def test_a_template_that_serves_no_more_is_counted_with_what_cannot_be_ended(stock: Stock) -> None:
    serve(stock, template(1, 9))
    serve(stock, template(2))
    standings, others = stock.standings({1: Footprint(30, 0), 2: Footprint(20, 0)})
    assert ([each.nbytes for each in standings], others) == ([20], 30)


def test_a_spare_more_takes_its_template_along_if_none_is_alive(stock: Stock) -> None:
    made: Any = serve(stock, template(1))
    stock.spares[TORCH] = [spare(2)]
    assert stock.bytes_of_spare(TORCH) == 0, "none was counted yet"
    stock.standings({1: Footprint(100, 0), 2: Footprint(9, 8)})
    assert (stock.bytes_of_spare(TORCH), stock.bytes_of_spare(TORCH, hot=True)) == (8, 8)
    stock.hot[TORCH] = [spare(3)]
    stock.standings({1: Footprint(60, 0), 3: Footprint(40, 30)})
    assert stock.bytes_of_template(TORCH) == 100, "it shares some with its forks now; the next one will not at first"
    made.lost = "it was killed"
    assert (stock.bytes_of_spare(TORCH), stock.bytes_of_spare(TORCH, hot=True)) == (108, 130)


def test_what_is_cleared_is_the_callers_to_end(stock: Stock) -> None:
    made = serve(stock, template(1))
    first, hot = spare(2), spare(3)
    stock.spares[TORCH], stock.hot[TORCH] = [first], [hot]
    stock.leaving.add(TORCH)
    assert stock.clear(TORCH) == (made, [first, hot])
    assert (stock.templates, stock.spares, stock.hot, stock.leaving) == ({}, {}, {}, set())
    assert stock.clear(TORCH) == (None, [])
