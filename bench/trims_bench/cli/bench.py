"""The `trims bench` command. Imports nothing of the benchmarks until one is run: every `trims` passes by here."""

from __future__ import annotations

import argparse
from pathlib import Path


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "measure trims against the frameworks' own loaders, side by side"
    names = "a scenario, one of its figures, or `all`; `list` says which there are"
    bench = commands.add_parser("bench", help=text, description=text)
    bench.add_argument("names", nargs="+", metavar="NAME", help=names)
    bench.add_argument("--out", type=Path, help="folder for raw results, one JSON file for each figure")
    text = "URL of the database that keeps figures and evaluations (default: evaluations.db in the folder of --out)"
    bench.add_argument("--database", default="", help=text)
    bench.add_argument("--work", type=Path, help="folder for what is measured, 10 GB (default: a temporary one)")
    bench.add_argument("--repeat", type=int, help="repeats of each side (default: what each figure needs)")
    bench.add_argument("--quick", action="store_true", help="tiny sizes: to see that it works, not how fast it is")
    text = "bytes that `restart` keeps in memory, such as 4GiB (default: 8 GB, or less where that is not to be had)"
    bench.add_argument("--resident", type=_bytes, metavar="BYTES", help=text)
    bench.set_defaults(run=_run)


def _bytes(text: str) -> int:
    from trims.core.errors import ConfigError
    from trims.core.units import parse_bytes

    try:
        return parse_bytes(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _run(options: argparse.Namespace) -> int:
    from trims_bench.bench import main

    return main(options)
