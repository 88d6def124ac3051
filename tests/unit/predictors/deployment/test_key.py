"""Keys of deployments are equal where their workers may answer for each other."""

from __future__ import annotations

from dataclasses import replace

from trims_predictors.deployment.key import DeploymentKey

KEY = DeploymentKey("a/b@c", "1f", "gpu:0", "blue")


def test_each_part_tells_keys_apart_whatever_signs_it_has() -> None:
    others = [replace(KEY, **{name: "x"}) for name in ("model", "digest", "place", "tenant")]
    assert len({KEY, *others}) == 5
    assert DeploymentKey("m", tenant="t") != DeploymentKey("m/t")


def test_the_key_of_the_model_is_that_of_all_places_and_tenants() -> None:
    assert KEY.of_model() == replace(KEY, place="").of_model() == DeploymentKey("a/b@c", "1f")


def test_people_read_model_tenant_and_place() -> None:
    assert (KEY.subject, str(KEY)) == ("a/b@c/blue", "a/b@c/blue@1f at gpu:0")
    assert str(DeploymentKey("m", "1f")) == "m@1f"
