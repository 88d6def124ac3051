"""The `trims bench` command. Imports nothing of the benchmarks until one is run: every `trims` passes by here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "measure trims against the frameworks' own loaders, side by side"
    bench = commands.add_parser("bench", help=text, description=text)
    bench.add_argument("names", nargs="+", metavar="NAME", help="a figure, or `all`; `list` says which there are")
    bench.add_argument("--out", type=Path, help="folder for raw results, one JSON file for each figure")
    bench.add_argument("--work", type=Path, help="folder for what is measured, 10 GB (default: a temporary one)")
    bench.add_argument("--repeat", type=int, help="repeats of each side (default: what each figure needs)")
    bench.add_argument("--quick", action="store_true", help="tiny sizes: to see that it works, not how fast it is")
    bench.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from trims_bench.bench import main

    return main(options)
