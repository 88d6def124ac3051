"""Arrival rates, by which models are in steady demand of new predictors: pure decisions, the caller brings the clock.

Each start of a predictor counts one, and each count halves every `HALF_LIFE_S` seconds. A model becomes hot at `ENTER`:
three starts within about two minutes. It stays hot until its count falls below `STAY`, so a model whose requests come a
little apart does not go in and out. A count is bounded, so a model cools within `HALF_LIFE_S` times log2 of `MOST`
seconds after its last start, however many there were. Where more models are hot than there is room for, one that is in
keeps its place until another one's count is twice as large.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HALF_LIFE_S = 120.0
ENTER, STAY, MOST = 2.9, 1.0, 8.0
#: Factor by which another model's count has to be larger to take a hot model's place.
_ADVANTAGE = 2.0
#: Below this a model counts as never seen.
_NOTHING = 0.01


class Demand:
    """Counts the starts of predictors by model, and chooses which models are hot."""

    def __init__(self) -> None:
        #: Model -> its count, and when that was right.
        self._counts: dict[str, tuple[float, float]] = {}
        self._hot: frozenset[str] = frozenset()

    def started(self, model: str, now_s: float) -> None:
        """A request needed a new predictor of the model."""
        self._counts[model] = (min(self.count(model, now_s) + 1.0, MOST), now_s)

    def count(self, model: str, now_s: float) -> float:
        """Starts of late, each worth half after `HALF_LIFE_S`."""
        count, at_s = self._counts.get(model, (0.0, now_s))
        return count * math.pow(0.5, max(0.0, now_s - at_s) / HALF_LIFE_S)

    def choose(self, stated: Mapping[str, int | None], most: int, now_s: float) -> dict[str, int]:
        """Return how many hot spares each model shall have; models without any are left out.

        Args:
            stated: Models that may have some -> how many their manifests state; None for by demand.
            most: Of all together. Stated ones come first: one for each model, then the rest.
            now_s: On the clock of `started`.
        """
        self._counts = {model: at for model, at in self._counts.items() if self.count(model, now_s) > _NOTHING}
        chosen = _shared_out({model: number for model, number in stated.items() if number}, most)
        found = [model for model, number in stated.items() if number is None and self._is_hot(model, now_s)]
        found.sort(key=lambda model: (-self._weight(model, now_s), model))
        hot = found[: max(0, most - sum(chosen.values()))]
        self._hot = frozenset(hot)
        return {**chosen, **dict.fromkeys(hot, 1)}

    def _is_hot(self, model: str, now_s: float) -> bool:
        return self.count(model, now_s) >= (STAY if model in self._hot else ENTER)

    def _weight(self, model: str, now_s: float) -> float:
        return self.count(model, now_s) * (_ADVANTAGE if model in self._hot else 1.0)


def _shared_out(wanted: Mapping[str, int], most: int) -> dict[str, int]:
    """Share out `most` hot spares: one for each model by name, then the rest by name."""
    chosen = dict.fromkeys(sorted(wanted)[:most], 1)
    for model in chosen:
        chosen[model] += min(wanted[model] - 1, most - sum(chosen.values()))
    return chosen
