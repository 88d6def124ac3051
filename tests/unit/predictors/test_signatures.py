"""What a predictor told of its tensors counts where the manifest is silent, for the manifest it was made from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trims_predictors.launching import Environment
from trims_predictors.records import Plan
from trims_predictors.signatures import Signatures
from trims_predictors.tensors import describe

from trims.core.serving import TensorType

X, Y, Z = (TensorType(name, "FP32", (-1, 3)) for name in "xyz")
PLAN = Plan("m@1", "m", "1.0.0", "a:B", Environment("numpy"))


@pytest.fixture
def signatures() -> Signatures:
    made = Signatures()
    made.learn(PLAN, {"inputs": describe([X]), "outputs": describe([Y])})
    return made


def test_nothing_is_known_before_a_predictor_has_loaded() -> None:
    assert Signatures().of(PLAN) == ((), ())


def test_what_a_predictor_told_is_known_to_tenants_and_places(signatures: Signatures) -> None:
    for plan in (PLAN, PLAN.for_tenant("blue"), PLAN.at("gpu:0")):
        assert signatures.of(plan) == ((X,), (Y,))


def test_what_the_manifest_states_comes_first(signatures: Signatures) -> None:
    assert signatures.of(replace(PLAN, inputs=(Z,))) == ((Z,), (Y,))
    assert signatures.of(replace(PLAN, outputs=(Z,))) == ((X,), (Z,))


def test_what_was_told_counts_for_its_manifest_only(signatures: Signatures) -> None:
    assert signatures.of(replace(PLAN, line="m@2")) == ((), ())
