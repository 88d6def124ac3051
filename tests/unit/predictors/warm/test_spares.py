"""Inputs that ran last are rehearsed; those of long runs, failures and models that are gone are not."""

from __future__ import annotations

from trims_predictors.warm import spares
from trims_predictors.warm.spares import LONGEST_S, Rehearsals

GIVEN = [{"name": "x", "dtype": "FP32", "shape": [1, 3]}]
OTHER = [{"name": "x", "dtype": "FP32", "shape": [2, 3]}]


def test_what_ran_last_is_rehearsed() -> None:
    made = Rehearsals()
    assert made.of("m") is None
    made.ran("m", {"given": GIVEN}, 0.1)
    made.ran("m", {}, 0.1)
    assert made.of("m") == GIVEN
    made.ran("m", {"given": OTHER}, 0.1)
    assert made.of("m") == OTHER


def test_a_predictor_that_stopped_to_rehearse_ends_it() -> None:
    made = Rehearsals()
    made.ran("m", {"given": GIVEN}, 0.1)
    made.ran("m", {"given": []}, 0.1)
    assert made.of("m") is None


def test_a_long_run_is_not_rehearsed() -> None:
    made = Rehearsals()
    made.ran("m", {"given": GIVEN}, LONGEST_S * 2)
    assert made.of("m") is None
    made.ran("m", {"given": GIVEN}, LONGEST_S / 2)
    made.ran("m", {}, LONGEST_S * 2)
    assert made.of("m") is None


def test_nonsense_of_a_predictor_is_not_kept() -> None:
    made = Rehearsals()
    made.ran("m", {"given": "nonsense"}, 0.1)
    made.ran("m", {"given": GIVEN * 65}, 0.1)
    assert made.of("m") is None


def test_what_failed_is_not_tried_again_until_the_model_is_another() -> None:
    made = Rehearsals()
    made.ran("m", {"given": GIVEN}, 0.1)
    made.refuse("m")
    made.ran("m", {"given": OTHER}, 0.1)
    assert made.of("m") is None
    made.forget("m")
    made.ran("m", {"given": GIVEN}, 0.1)
    assert made.of("m") == GIVEN


def test_lines_are_remembered_within_a_bound() -> None:
    made = Rehearsals()
    for number in range(spares.MOST + 5):
        made.ran(f"m{number}", {"given": GIVEN}, 0.1)
    assert made.of("m4") is None
    assert made.of("m5") == GIVEN
