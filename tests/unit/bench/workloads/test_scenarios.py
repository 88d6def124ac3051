"""Scenarios: their options, and how loads are laid down from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from load_server import load_server
from loads import target
from trims_bench.workloads.scenarios import USES, choose, lay_down, run_scenario

from trims.core.errors import CallerError

if TYPE_CHECKING:
    from pathlib import Path

VALUES: dict[str, Any] = {
    "rate": 100.0, "duration": 1.0, "requests": 50, "concurrency": 2, "batch": 4, "burst_size": 5, "bound_ms": 10.0,
    "percentile": 95.0, "arrivals": "file", "time_scale": 2.0, "popularity": "zipf:1",
}  # fmt: skip
NEEDED: dict[str, dict[str, Any]] = {
    "poisson": {"rate": 100.0}, "burst": {"rate": 100.0}, "max-rate": {"bound_ms": 10.0},
    "replay": {"arrivals": "file"},
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_each_scenario_takes_its_options_and_refuses_all_others(name: str) -> None:
    needed = NEEDED.get(name, {})
    for option, value in VALUES.items():
        given = {**dict.fromkeys(VALUES), **needed, option: value}
        if option in USES[name]:
            assert choose(name, given).options[option] == value
        else:
            with pytest.raises(CallerError):
                choose(name, given)
    for option in needed:
        with pytest.raises(CallerError):
            choose(name, {**needed, option: None})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rate", 0.0), ("rate", float("nan")), ("duration", 0.0), ("requests", 0), ("requests", 10**9), ("seed", -1),
        ("deadline_s", 0.0), ("connections", 0), ("popularity", "odd"),
    ],
)  # fmt: skip
def test_an_option_out_of_range_is_refused(option: str, value: Any) -> None:
    with pytest.raises(CallerError):
        choose("poisson", {"rate": 1.0, option: value})


def test_defaults_are_stored_with_what_was_stated() -> None:
    assert choose("closed", {"seed": 3}).options == {
        "concurrency": 8, "duration": 10.0, "popularity": "uniform", "seed": 3, "deadline_s": 60.0, "connections": 4096,
    }  # fmt: skip
    assert choose("closed", {"requests": 5}).duration is None, "one end is enough"
    with pytest.raises(CallerError):
        choose("other", {})


def test_equal_seeds_lay_down_equal_loads_and_popularity_leaves_the_times() -> None:
    whom = target(1, "a", "b", "c")
    first, again, other, popular = (
        lay_down(choose("poisson", {"rate": 200.0, "duration": 2.0, **more}), whom)[0]
        for more in ({}, {}, {"seed": 2}, {"popularity": "zipf:2"})
    )
    assert (first.times_ns, first.models) == (again.times_ns, again.models)
    assert first.times_ns != other.times_ns
    assert first.times_ns == popular.times_ns
    assert np.bincount(popular.models)[0] > np.bincount(first.models)[0]


def test_a_closed_loop_has_no_times_and_ends_by_number_or_time() -> None:
    order, seconds = lay_down(choose("single-stream", {"requests": 7}), target(1))
    assert (len(order.times_ns), order.concurrency, order.most_requests, seconds) == (0, 1, 7, None)
    order, _ = lay_down(choose("closed", {"concurrency": 5, "duration": 2.0}), target(1))
    assert (order.concurrency, order.most_ns) == (5, 2_000_000_000)


def test_a_replay_gives_the_function_that_is_called_most_to_the_first_model(folder: Path) -> None:
    path = folder / "calls.csv"
    path.write_text("app,func,end_timestamp,duration\na,x,0,0\na,y,1,0\na,y,2,0\na,z,3,0\n")
    scenario = choose("replay", {"arrivals": path, "time_scale": 10.0})
    order, seconds = lay_down(scenario, target(1, "m", "n"))
    assert list(order.times_ns) == [0, 100_000_000, 200_000_000, 300_000_000]
    assert list(order.models) == [1, 0, 0, 0], "three functions on two models: the third shares the first one's"
    assert seconds == 0.3
    assert scenario.options["arrivals"] == str(path)
    cut, _ = lay_down(choose("replay", {"arrivals": path, "requests": 2}), target(1))
    assert len(cut.times_ns) == 2


def test_a_load_without_any_request_is_refused() -> None:
    with pytest.raises(CallerError):
        lay_down(choose("poisson", {"rate": 0.001, "duration": 0.001}), target(1))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("single-stream", {"requests": 20}), ("batched", {"requests": 20}), ("closed", {"requests": 20}),
        ("poisson", {"rate": 500.0, "requests": 20}), ("burst", {"rate": 500.0, "requests": 20}),
    ],
)  # fmt: skip
def test_each_scenario_makes_its_load_on_a_real_server(name: str, given: dict[str, Any]) -> None:
    seen: list[tuple[int, int | None]] = []
    with load_server("--cold", "2") as port:
        result = run_scenario(choose(name, given), target(port, "a", "b"), lambda *each: seen.append(each))
    assert (result.scenario, result.requests, result.answered, result.ended) == (name, 20, 20, "done")
    assert sum(each.requests for each in result.models) == 20
    assert sum(each.cold or 0 for each in result.models) == 2
    assert seen[-1] == (20, 20)
    assert (result.rate_asked is None) == (name not in ("poisson", "burst"))
