"""The `trims bench` command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "run benchmarks (not built yet)"
    bench = commands.add_parser("bench", help=text, description=text)
    bench.set_defaults(run=lambda _: 0)
