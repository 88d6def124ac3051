from __future__ import annotations

import numpy as np
import pytest
from trims_bench.workloads.scenarios import Popularity, chosen, parse_popularity, shares

from trims.core.errors import CallerError

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
