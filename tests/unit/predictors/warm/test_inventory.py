"""Processes that a warm pool has ready: each counts once, at the kernel's figures, and none that has gone serves."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from trims_predictors.children.launcher import Environment
from trims_predictors.warm.inventory import Inventory
from trims_predictors.warm.memory_usage import Footprint

if TYPE_CHECKING:
    from trims_predictors.children.template_process import Template
    from trims_predictors.children.worker_process import PredictorProcess

TORCH, OTHER = Environment("torch"), Environment("torch", "/other/python")
MIB = 1 << 20


class Future:
    """Future of a process's end."""

    is_done = False

    def done(self) -> bool:
        return self.is_done


def template(pid: int, *predictors: int) -> Any:
    """One process of its own, and the predictors forked from it."""
    return SimpleNamespace(pids=[pid], predictors=set(predictors), lost=None, waited_for=False, gone=Future())


def spare(pid: int, *, dying: bool = False) -> PredictorProcess:
    return cast("PredictorProcess", SimpleNamespace(pid=pid, dying=dying))


def serve(inventory: Inventory, made: Any, environment: Environment = TORCH) -> Template:
    inventory.add(environment, made)
    inventory.templates[environment] = made
    return cast("Template", made)


@pytest.fixture
def inventory() -> Inventory:
    return Inventory()


def test_the_newest_spare_is_taken_and_those_that_die_are_passed_over(inventory: Inventory) -> None:
    inventory.spares[TORCH] = [spare(1), spare(2), spare(3, dying=True)]
    taken = inventory.take_spare(TORCH)
    assert taken is not None
    assert taken.pid == 2
    assert [each.pid for each in inventory.spares[TORCH]] == [1]
    assert inventory.take_spare(OTHER) is None


def test_a_spare_that_was_taken_may_end_without_harm(inventory: Inventory) -> None:
    first, second = spare(1), spare(2)
    inventory.spares[TORCH] = [first, second]
    for ended in (second, second):
        inventory.drop_spare(TORCH, ended)
    assert inventory.spares == {TORCH: [first]}


def test_a_hot_spare_is_counted_until_it_is_dropped_once(inventory: Inventory) -> None:
    hot = spare(1)
    inventory.hot[TORCH] = [hot]
    assert inventory.drop_hot(hot)
    assert not inventory.drop_hot(hot), "it is being ended, or was taken"


def test_a_lost_template_serves_no_more_and_is_known_until_its_processes_are_gone(inventory: Inventory) -> None:
    made: Any = serve(inventory, template(7))
    assert inventory.serving(TORCH) is made
    made.lost = "it was killed"
    assert inventory.serving(TORCH) is None
    assert (inventory.running(), len(inventory.made)) == ([], 1)
    inventory.forget_ended()
    assert len(inventory.made) == 1, "it has not ended yet"
    made.gone.is_done = True
    inventory.forget_ended()
    assert inventory.made == []


def test_environments_of_one_framework_are_told_together(inventory: Inventory) -> None:
    serve(inventory, template(1))
    serve(inventory, template(2), OTHER)
    inventory.add(TORCH, template(3))
    ended: Any = inventory.made[1][1]
    ended.lost = "it was killed"
    inventory.spares, inventory.hot = {TORCH: [spare(4)], OTHER: [spare(5), spare(6)]}, {TORCH: [spare(7)]}
    counted = {pid: Footprint(MIB, 0) for pid in (1, 2, 3, 4, 7)}
    assert inventory.spares_by_framework() == {"torch": 3}
    told = inventory.templates_by_framework(counted)
    assert told == {"torch": {"started": 3, "ended": 1, "bytes": 4 * MIB}}, "what was not counted yet is not told"


def test_a_usage_tells_each_part_and_why_a_template_may_not_end(inventory: Inventory) -> None:
    made: Any = serve(inventory, template(1, 2, 3, 4))
    made.waited_for = True
    inventory.spares, inventory.hot = {TORCH: [spare(2)]}, {TORCH: [spare(3)]}
    inventory.kept.add(TORCH)
    inventory.use(TORCH)
    counted = {1: Footprint(50, 0), 2: Footprint(5, 4), 3: Footprint(7, 6)}
    ((usage,), others) = inventory.usages(counted)
    told = dataclasses.asdict(usage)
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


def test_a_template_that_serves_no_more_is_counted_with_what_cannot_be_ended(inventory: Inventory) -> None:
    serve(inventory, template(1, 9))
    serve(inventory, template(2))
    usages, others = inventory.usages({1: Footprint(30, 0), 2: Footprint(20, 0)})
    assert ([each.nbytes for each in usages], others) == ([20], 30)


def test_a_spare_more_takes_its_template_along_if_none_is_alive(inventory: Inventory) -> None:
    made: Any = serve(inventory, template(1))
    inventory.spares[TORCH] = [spare(2)]
    assert inventory.bytes_of_spare(TORCH) == 0, "none was counted yet"
    inventory.usages({1: Footprint(100, 0), 2: Footprint(9, 8)})
    assert (inventory.bytes_of_spare(TORCH), inventory.bytes_of_spare(TORCH, hot=True)) == (8, 8)
    inventory.hot[TORCH] = [spare(3)]
    inventory.usages({1: Footprint(60, 0), 3: Footprint(40, 30)})
    assert inventory.bytes_of_template(TORCH) == 100, (
        "it shares some with its forks now; the next one will not at first"
    )
    made.lost = "it was killed"
    assert (inventory.bytes_of_spare(TORCH), inventory.bytes_of_spare(TORCH, hot=True)) == (108, 130)


def test_what_is_cleared_is_the_callers_to_end(inventory: Inventory) -> None:
    made = serve(inventory, template(1))
    first, hot = spare(2), spare(3)
    inventory.spares[TORCH], inventory.hot[TORCH] = [first], [hot]
    inventory.leaving.add(TORCH)
    assert inventory.clear(TORCH) == (made, [first, hot])
    assert (inventory.templates, inventory.spares, inventory.hot, inventory.leaving) == ({}, {}, {}, set())
    assert inventory.clear(TORCH) == (None, [])
