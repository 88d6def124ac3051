"""Environments whose templates cannot be forked: what is known of them."""

from __future__ import annotations

from trims_predictors.children.launcher import Environment
from trims_predictors.warm.unforkable import Unforkable

NUMPY, TORCH = Environment("numpy"), Environment("torch")


def test_a_template_is_tried_again_after_ten_minutes() -> None:
    now_s = [100.0]
    unforkable = Unforkable(lambda: now_s[0])
    assert NUMPY not in unforkable
    unforkable.note(NUMPY)
    assert NUMPY in unforkable
    assert TORCH not in unforkable
    now_s[0] += 599
    assert NUMPY in unforkable
    now_s[0] += 1
    assert NUMPY not in unforkable
