"""Signatures that a predictor reported count where the manifest is silent, for the manifest it was made from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trims_predictors.children.launcher import Environment
from trims_predictors.deployment.deployment import Deployment
from trims_predictors.deployment.key import DeploymentKey
from trims_predictors.deployment.signatures import Signatures
from trims_predictors.tensors import Tensor, describe

from trims.manifests.serving import Signature, TensorType

X, Y, Z = (TensorType(name, "FP32", (-1, 3)) for name in "xyz")
PLAN = Deployment(DeploymentKey("m", "1"), "m", "1.0.0", "a:B", Environment("numpy"))


@pytest.fixture
def signatures() -> Signatures:
    made = Signatures()
    made.learn(PLAN, {"inputs": describe([X]), "outputs": describe([Y])})
    return made


def test_nothing_is_known_before_a_predictor_has_loaded() -> None:
    assert Signatures().of(PLAN) == ((), ())


def test_what_a_predictor_told_is_known_to_tenants_and_places(signatures: Signatures) -> None:
    for deployment in (PLAN, PLAN.for_tenant("blue"), PLAN.at("gpu:0")):
        assert signatures.of(deployment) == ((X,), (Y,))


def test_what_the_manifest_states_comes_first(signatures: Signatures) -> None:
    assert signatures.of(replace(PLAN, inputs=(Z,))) == ((Z,), (Y,))
    assert signatures.of(replace(PLAN, outputs=(Z,))) == ((X,), (Z,))


def test_what_was_told_counts_for_its_manifest_only(signatures: Signatures) -> None:
    assert signatures.of(replace(PLAN, key=DeploymentKey("m", "2"))) == ((), ())


GIVEN, MADE = Tensor("z", "INT64", (2, 7), b""), Tensor("y", "FP32", (2,), b"")
SEEN = ((TensorType("z", "INT64", (-1, -1)),), (TensorType("y", "FP32", (-1,)),))


def test_the_graph_counts_until_a_predictor_has_loaded(signatures: Signatures) -> None:
    deployment = replace(PLAN, found=Signature((Z,), (Z,)))
    assert Signatures().stated(deployment) == Signatures().described(deployment) == ((Z,), (Z,))
    assert Signatures().of(deployment) == ((), ()), "its files may be others by now"
    assert (
        signatures.of(deployment) == signatures.stated(deployment) == signatures.described(deployment) == ((X,), (Y,))
    )


def test_a_first_run_describes_a_model_and_refuses_nothing() -> None:
    signatures = Signatures()
    signatures.learn(PLAN, {"inputs": [], "outputs": [], "image": ["k", "cpu"]})
    assert signatures.see(PLAN.for_tenant("blue"), [GIVEN], [MADE]) is None, "others would see what it named"
    assert signatures.see(PLAN, [GIVEN], [MADE]) == ("k", Signature(*SEEN, seen=True))
    assert signatures.see(PLAN, [GIVEN], [MADE]) is None
    assert (signatures.of(PLAN), signatures.described(PLAN)) == (((), ()), SEEN)
    kept = replace(PLAN, found=Signature(*SEEN, seen=True))
    assert (Signatures().stated(kept), Signatures().described(kept)) == (((), ()), SEEN)


def test_outputs_are_kept_from_the_first_run_that_had_all_of_them() -> None:
    signatures = Signatures()
    assert signatures.see(PLAN, [GIVEN], []) == ("", Signature(SEEN[0], (), seen=True))
    assert signatures.see(PLAN, [GIVEN], []) is None
    assert signatures.see(PLAN, [MADE], [MADE]) == ("", Signature(*SEEN, seen=True))
    assert signatures.see(PLAN, [GIVEN], [GIVEN]) is None


def test_a_run_of_another_image_is_forgotten_when_that_is_loaded() -> None:
    signatures = Signatures()
    loaded = {"inputs": [], "outputs": []}
    for image, expected in (("k", ((), ())), ("k", SEEN), ("other", ((), ()))):
        signatures.learn(PLAN, {**loaded, "image": [image, "cpu"]})
        assert signatures.described(PLAN) == expected
        signatures.see(PLAN, [GIVEN], [MADE])


def test_a_run_tells_nothing_of_a_model_that_is_known(signatures: Signatures) -> None:
    assert signatures.see(PLAN, [GIVEN], [MADE]) is None
    assert signatures.described(PLAN) == ((X,), (Y,))
