"""Which models are hot: by how often they need a new predictor, by what manifests state, and within the bound."""

from __future__ import annotations

from trims_predictors.warm.hot_spares import ENTER, HALF_LIFE_S, MOST, STAY, Demand

BY_DEMAND = {"a": None, "b": None}


def demand(**times: list[float]) -> Demand:
    made = Demand()
    for model, starts in times.items():
        for at_s in starts:
            made.started(model, at_s)
    return made


def test_a_model_is_hot_from_its_third_start_within_a_short_time_on() -> None:
    asked = demand(a=[0.0, 1.0])
    assert asked.choose(BY_DEMAND, 2, 1.0) == {}
    asked.started("a", 2.0)
    assert asked.choose(BY_DEMAND, 2, 2.0) == {"a": 1}


def test_starts_that_lie_far_apart_never_make_a_model_hot() -> None:
    asked = demand(a=[100.0 * number for number in range(50)])
    assert asked.choose(BY_DEMAND, 2, 4900.0) == {}


def test_a_hot_model_stays_hot_at_a_rate_that_would_not_make_it_hot() -> None:
    asked = demand(a=[0.0, 1.0, 2.0])
    assert asked.choose(BY_DEMAND, 2, 2.0) == {"a": 1}
    now_s = 2.0
    for _ in range(20):
        now_s += 100.0
        assert asked.choose(BY_DEMAND, 2, now_s) == {"a": 1}
        asked.started("a", now_s)
    assert asked.count("a", now_s) < ENTER


def test_a_model_cools_after_its_last_start_however_many_there_were() -> None:
    asked = demand(a=[number / 100 for number in range(10000)])
    assert asked.count("a", 100.0) <= MOST
    assert asked.choose(BY_DEMAND, 2, 100.0) == {"a": 1}
    assert asked.choose(BY_DEMAND, 2, 100.0 + 3.1 * HALF_LIFE_S) == {}
    assert asked.count("a", 100.0 + 3.1 * HALF_LIFE_S) < STAY
    assert asked.choose(BY_DEMAND, 2, 1e6) == {}
    assert asked.count("a", 1e6) == 0.0


def test_the_models_with_the_most_starts_are_chosen_within_the_bound() -> None:
    asked = demand(a=[0.0, 1.0, 2.0], b=[0.0, 1.0, 1.5, 2.0])
    assert asked.choose(BY_DEMAND, 1, 2.0) == {"b": 1}
    assert asked.choose(BY_DEMAND, 2, 2.0) == {"a": 1, "b": 1}
    assert asked.choose(BY_DEMAND, 0, 2.0) == {}


def test_a_hot_model_keeps_its_place_until_another_one_counts_twice_as_much() -> None:
    asked = demand(a=[0.0, 0.0, 0.0])
    assert asked.choose(BY_DEMAND, 1, 0.0) == {"a": 1}
    for _ in range(5):
        asked.started("b", 0.0)
    assert asked.choose(BY_DEMAND, 1, 0.0) == {"a": 1}
    asked.started("b", 0.0)
    asked.started("b", 0.0)
    assert asked.choose(BY_DEMAND, 1, 0.0) == {"b": 1}


def test_what_manifests_state_comes_first_one_for_each_then_the_rest() -> None:
    asked = demand(a=[0.0, 0.0, 0.0])
    stated = {"a": None, "x": 2, "y": 3}
    assert asked.choose(stated, 1, 0.0) == {"x": 1}
    assert asked.choose(stated, 2, 0.0) == {"x": 1, "y": 1}
    assert asked.choose(stated, 3, 0.0) == {"x": 2, "y": 1}
    assert asked.choose(stated, 9, 0.0) == {"x": 2, "y": 3, "a": 1}


def test_a_manifest_that_states_none_has_none_whatever_the_demand() -> None:
    assert demand(a=[0.0] * 8).choose({"a": 0}, 2, 0.0) == {}


def test_only_models_that_may_have_hot_spares_are_chosen() -> None:
    assert demand(a=[0.0] * 8).choose({}, 2, 0.0) == {}


def test_a_clock_that_seems_to_go_back_counts_as_usage_still() -> None:
    asked = demand(a=[10.0, 9.0, 8.0])
    assert asked.count("a", 7.0) == 3.0
