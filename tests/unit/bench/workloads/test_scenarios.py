"""Scenarios: their options, and how loads are laid down from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from load_server import load_server
from loads import target
from trims_bench.workloads.scenarios import (
    USES,
    Popularity,
    choose,
    chosen,
    lay_down,
    parse_popularity,
    run_scenario,
    shares,
)

from trims.core.errors import CallerError

if TYPE_CHECKING:
    from pathlib import Path


# Popularity of models: how it is written, and what is drawn, from fixed seeds.


@pytest.mark.parametrize(
    ("text", "kind", "parameter"),
    [("uniform", "uniform", 0.0), ("zipf", "zipf", 1.0), ("zipf:1.1", "zipf", 1.1), ("pareto:2", "pareto", 2.0)],
)
def test_a_popularity_is_written_as_kind_and_exponent(text: str, kind: str, parameter: float) -> None:
    found = parse_popularity(text)
    assert found == Popularity(kind, parameter)
    assert parse_popularity(str(found)) == found


@pytest.mark.parametrize("text", ["", "zip", "uniform:1", "zipf:", "zipf:-1", "zipf:nan", "pareto:0", "pareto:inf"])
def test_another_popularity_is_refused(text: str) -> None:
    with pytest.raises(CallerError):
        parse_popularity(text)


def test_zipf_asks_for_the_model_of_rank_r_as_often_as_one_over_r() -> None:
    count, ranks = 100_000, 10
    drawn = np.bincount(chosen(Popularity("zipf", 1.0), ranks, count, np.random.default_rng(7)), minlength=ranks)
    expected = count * shares(Popularity("zipf", 1.0), ranks, np.random.default_rng(7))
    assert list(np.argsort(-drawn)) == list(range(ranks)), "the ranks are in their order"
    assert ((drawn - expected) ** 2 / expected).sum() < 27.9, "chi-square of 9 degrees of freedom at 0.1 %"
    assert expected[0] / expected[4] == pytest.approx(5.0)


def test_uniform_asks_for_all_alike_and_shares_are_a_whole() -> None:
    drawn = np.bincount(chosen(Popularity(), 4, 40_000, np.random.default_rng(3)), minlength=4)
    assert ((drawn - 10_000) ** 2 / 10_000).sum() < 16.3, "chi-square of 3 degrees of freedom at 0.1 %"
    for popularity in (Popularity(), Popularity("zipf", 0.5), Popularity("pareto", 1.0)):
        assert shares(popularity, 7, np.random.default_rng(0)).sum() == pytest.approx(1.0)


def test_pareto_weights_follow_their_distribution_and_their_seed() -> None:
    first, again = (shares(Popularity("pareto", 1.5), 20_000, np.random.default_rng(5)) for _ in range(2))
    assert (first == again).all()
    weights = first / first.min()  # of the minimum 1: the share above x is x ** -a
    assert (weights > 2).mean() == pytest.approx(2**-1.5, abs=0.02)


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
