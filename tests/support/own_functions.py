"""Functions that tests name in manifests as `own_functions:name`: predictors and steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Mapping

NUMBER = 3


def scale(weights: Mapping[str, Any], inputs: Mapping[str, Any], bias: float = 0.0) -> dict[str, Any]:
    """What a model of one weight answers."""
    return {"y": inputs["x"] * weights["factor"] + bias}


def mean_colour(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Each image's mean of each channel, times the weight: a classifier of red, green and blue."""
    return {"logits": inputs["data"].mean(axis=(2, 3)) * weights["factor"]}


def answer_nothing(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """No mapping."""


def add(context: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Adds what the step's options say."""
    return {**data, "x": data["x"] + context.options["number"]}


def refuse(context: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Takes no request."""
    raise CallerError(f"{context.model} takes none of these")


def fail(context: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Has a defect."""
    raise ZeroDivisionError("by hand")
