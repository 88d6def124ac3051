"""Settings of a pool: the command's defaults are the pool's own; and deployments of tenants and places."""

from __future__ import annotations

from trims_predictors.children.launcher import Environment
from trims_predictors.cli.endpoint import register
from trims_predictors.deployment.deployment import Deployment, Settings
from trims_predictors.deployment.key import DeploymentKey


def test_the_command_has_the_defaults_of_the_settings() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    options, defaults = parser.parse_args(["endpoint"]), Settings("")
    assert (options.predictors, options.queue) == (defaults.predictors, defaults.queue)
    assert options.hot_spares == defaults.hot_spares
    assert float(options.keep_alive_s) == defaults.keep_alive_s


def test_a_deployment_for_a_place_and_a_tenant_has_a_line_of_its_own() -> None:
    deployment = Deployment(DeploymentKey("m", "1"), "m", "1.0.0", "a:B", Environment("numpy"), hot=1)
    both = deployment.for_tenant("blue").at("gpu:0")
    assert both == deployment.at("gpu:0").for_tenant("blue")
    assert (both.key, both.key.of_model(), both.subject) == (
        DeploymentKey("m", "1", "gpu:0", "blue"),
        deployment.key,
        "m/blue",
    )
    assert (both.place, both.hot) == ("gpu:0", 0)
