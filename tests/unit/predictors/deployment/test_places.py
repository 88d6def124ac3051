"""Places in order of preference: which are asked, in which order, and which errors lead on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from trims_predictors.children.launcher import Environment
from trims_predictors.deployment.deployment import Deployment
from trims_predictors.deployment.key import DeploymentKey
from trims_predictors.deployment.places import first_that_serves, parse_places

from trims.core.errors import (
    CallerError,
    DeviceLostError,
    NoSpaceError,
    NotSupportedError,
    PredictorError,
    QuotaError,
    TrimsError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DEPLOYMENT = Deployment(DeploymentKey("m", "1"), "m", "1", "call", Environment("torch"))


def asked(places: tuple[str, ...], errors: dict[str, TrimsError], may_go_on: Callable[[], bool] = lambda: True) -> str:
    """Return the place that has answered."""

    async def ask(deployment: Deployment) -> str:
        place = deployment.place or "its own"
        if place in errors:
            raise errors[place]
        return place

    deployment, found = asyncio.run(first_that_serves(DEPLOYMENT, places, ask, may_go_on))
    assert (deployment.place or "its own") == found
    return found


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("gpu:1", ("gpu:1",)), ("gpu", ("gpu",)), ("gpu, cpu", ("gpu", "cpu")), ("auto", ("auto",)),
        ("gpu:0,gpu:1,file", ("gpu:0", "gpu:1", "file")),
    ],
)  # fmt: skip
def test_a_text_names_places_the_best_first(text: str, places: tuple[str, ...]) -> None:
    assert parse_places(text) == places


@pytest.mark.parametrize("text", ["", "tape", "gpu,", "gpu,gpu", "cpu:1", ",".join(f"gpu:{n}" for n in range(9))])
def test_a_text_that_names_no_places_is_refused(text: str) -> None:
    with pytest.raises(CallerError):
        parse_places(text)


def test_a_request_without_places_is_for_that_of_the_manifest() -> None:
    assert asked((), {}) == "its own"


@pytest.mark.parametrize(
    "error", [NoSpaceError("full"), QuotaError("full"), NotSupportedError("x"), DeviceLostError("x")]
)
def test_a_place_that_cannot_serve_is_passed_over(error: TrimsError) -> None:
    assert asked(("gpu", "cpu"), {"gpu": error}) == "cpu"
    assert asked(("gpu", "cpu"), {"cpu": error}) == "gpu"
    with pytest.raises(type(error)):
        asked(("gpu", "cpu"), {"gpu": NoSpaceError("full"), "cpu": error})


@pytest.mark.parametrize("error", [CallerError("wrong"), PredictorError("broken")])
def test_an_error_of_the_request_or_the_model_is_that_of_every_place(error: TrimsError) -> None:
    with pytest.raises(type(error)):
        asked(("gpu", "cpu"), {"gpu": error})


def test_no_other_place_is_asked_once_a_part_was_sent() -> None:
    with pytest.raises(NoSpaceError):
        asked(("gpu", "cpu"), {"gpu": NoSpaceError("full")}, lambda: False)
