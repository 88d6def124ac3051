"""Which failures are remembered of a model, for how long, and in how much memory."""

from __future__ import annotations

import pytest
from trims_predictors.children.launcher import Environment
from trims_predictors.deployment.deployment import Deployment
from trims_predictors.deployment.key import DeploymentKey
from trims_predictors.pool import load_failures as room
from trims_predictors.pool.load_failures import MOST_LETTERS, Failures

from trims.core.errors import TrimsError, error_classes

OF_OTHERS = {
    "artifact_changed", "busy", "capacity", "daemon_away", "deadline", "device_lost", "draining", "in_use", "lost_peer",
    "model_not_found", "no_space", "permission_denied", "quota", "source_unavailable", "too_large",
}  # fmt: skip


def deployment(model: str = "m", digest: str = "1") -> Deployment:
    return Deployment(DeploymentKey(model, digest), model, "1.0.0", "call", Environment("numpy"))


@pytest.mark.parametrize("cls", error_classes().values(), ids=lambda cls: cls.code)
def test_errors_of_the_model_are_kept_and_those_of_others_are_not(cls: type[TrimsError]) -> None:
    kept = Failures()
    kept.learn(deployment(), cls("why"))
    assert kept.reason(deployment()) == ("" if cls.code in OF_OTHERS else "why")


def test_a_failure_counts_for_all_tenants_and_places_of_one_version() -> None:
    kept, error = Failures(), TrimsError("why")
    kept.learn(deployment().for_tenant("t").at("cpu"), error)
    assert (kept.reason(deployment()), kept.reason(deployment(digest="2"))) == ("why", "")
    kept.learn(deployment(digest="2"), error)
    kept.clear(deployment().for_tenant("other"))
    assert (kept.reason(deployment()), kept.reason(deployment(digest="2"))) == ("", "why")


def test_a_place_that_a_request_names_and_that_lacks_is_no_failure_of_the_model() -> None:
    kept, error = Failures(), error_classes()["not_supported"]("no such device")
    kept.learn(deployment().at("gpu:0"), error)
    assert kept.reason(deployment()) == ""
    kept.learn(deployment(), error)
    assert kept.reason(deployment()) == "no such device"


def test_a_model_that_is_removed_is_forgotten_in_all_versions() -> None:
    kept = Failures()
    for each in (deployment(), deployment(digest="2"), deployment("m@x"), deployment("other")):
        kept.learn(each, TrimsError("why"))
    kept.forget("m")
    assert [kept.reason(each) for each in (deployment(), deployment(digest="2"), deployment("other"))] == [
        "",
        "",
        "why",
    ]


def test_reasons_are_short_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_FAILURES", 3)
    kept = Failures()
    for number in (0, 1, 2, 0, 3):
        kept.learn(deployment(digest=str(number)), TrimsError("x" * 9999))
    reasons = [kept.reason(deployment(digest=str(number))) for number in range(4)]
    assert [len(each) for each in reasons] == [MOST_LETTERS + 3, 0, MOST_LETTERS + 3, MOST_LETTERS + 3]


def test_an_error_without_words_is_a_failure_too() -> None:
    kept = Failures()
    kept.learn(deployment(), TrimsError())
    assert kept.reason(deployment()) == "TrimsError"
