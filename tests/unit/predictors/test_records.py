"""What a fleet is made with: the command's defaults are the fleet's own."""

from __future__ import annotations

from trims_predictors.command import register
from trims_predictors.records import Settings


def test_the_command_has_the_defaults_of_the_settings() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    options, defaults = parser.parse_args(["endpoint"]), Settings("")
    assert (options.predictors, options.queue) == (defaults.predictors, defaults.queue)
    assert options.hot_spares == defaults.hot_spares
    assert float(options.keep_alive_s) == defaults.keep_alive_s
