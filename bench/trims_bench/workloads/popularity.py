"""Popularity: how requests are distributed over several models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims.core.errors import CallerError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNIFORM, ZIPF, PARETO = "uniform", "zipf", "pareto"
#: Default exponents.
_PARAMETERS = {UNIFORM: 0.0, ZIPF: 1.0, PARETO: 1.0}
_MOST_PARAMETER = 100.0


@dataclass(frozen=True, slots=True)
class Popularity:
    """Distribution of requests over models, the first named one being of rank 1.

    Attributes:
        kind: `uniform`; `zipf`, where the model of rank r is asked for as often as r ** -s; or `pareto`, where each
            model has a weight that is drawn once from a Pareto distribution with minimum 1 and exponent a.
        parameter: The exponent s or a.
    """

    kind: str = UNIFORM
    parameter: float = 0.0

    def __str__(self) -> str:
        return self.kind if self.kind == UNIFORM else f"{self.kind}:{self.parameter:g}"


def parse_popularity(text: str) -> Popularity:
    """Parse `uniform`, `zipf:S` or `pareto:A`; without a number the exponent is 1. Raises CallerError."""
    kind, colon, number = text.partition(":")
    if kind not in _PARAMETERS or (kind == UNIFORM and colon):
        raise CallerError(f"--popularity is {text!r:.80}; write uniform, zipf:S such as zipf:1.1, or pareto:A")
    try:
        parameter = float(number) if colon else _PARAMETERS[kind]
    except ValueError:
        parameter = math.nan
    least_ok = parameter > 0 if kind == PARETO else parameter >= 0
    if not least_ok or not parameter <= _MOST_PARAMETER:
        raise CallerError(f"--popularity is {text!r:.80}; its exponent must be a number above 0, such as {kind}:1")
    return Popularity(kind, parameter)


def shares(popularity: Popularity, models: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Return each model's part of all requests. Together they are 1."""
    import numpy as np

    if popularity.kind == ZIPF:
        weights = np.arange(1, models + 1, dtype=np.float64) ** -popularity.parameter
    elif popularity.kind == PARETO:
        weights = 1.0 + random.pareto(popularity.parameter, models)
    else:
        weights = np.ones(models)
    found: NDArray[np.float64] = weights / weights.sum()
    return found


def chosen(popularity: Popularity, models: int, count: int, random: np.random.Generator) -> NDArray[np.uint16]:
    """Draw which model each of `count` requests is for."""
    import numpy as np

    found: NDArray[np.uint16] = random.choice(models, count, p=shares(popularity, models, random)).astype(np.uint16)
    return found
