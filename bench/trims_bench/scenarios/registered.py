"""Orders that name one model, beside a daemon that has no other: what thousands of registered models cost each."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims_bench.checkpoints import write_checkpoint
from trims_bench.child import call
from trims_bench.measuring import Bar, Comparison, Figure, Samples, ratio
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims_client import Session

    from trims.control import Admin
    from trims_bench.scenarios.base import Setup

_TITLE = "add, show, open, alias and rm of one model, with 5,000 others registered"
_BAR = Bar("<=", 1.2)
_BYTES = 64 << 10


def registered(setup: Setup) -> Figure:
    """Two daemons take turns; one of them has the others."""
    others = setup.size(5000, 20)
    with setup.scratch() as folder, setup.daemon(folder / "few") as few, setup.daemon(folder / "many") as many:
        given = {"runtime_dirs": [str(each.runtime_dir) for each in (many, few)], "folder": str(folder)}
        found = call(measure_orders, {**given, "others": others, "repeats": setup.repeats(200)})
    return Figure("registered", _TITLE, [_compared(what, others, *sides) for what, sides in found.items()], [_NOTE])


def _compared(what: str, others: int, many: list[int], few: list[int]) -> Comparison:
    sides = Samples(f"{what}, {others:,} others", many), Samples(f"{what}, no others", few)
    return ratio(f"{what}, {others:,} others, times none", *sides, _BAR)


_NOTE = (
    "The others are registered and were never opened. Each add is of a new artifact of 64 KiB; `add, lazy` registers a "
    "second version and converts nothing. One client gives all orders to both daemons in turns: an open through the "
    "attach door, all others through the control door."
)


def measure_orders(runtime_dirs: list[str], folder: str, others: int, repeats: int) -> dict[str, list[list[int]]]:
    """Return nanoseconds of each order: of the daemon with others, and of the one without."""
    from trims_client import connect

    from trims.control import admin

    with admin(runtime_dirs[0]) as many, admin(runtime_dirs[1]) as few:
        artifact = write_checkpoint(Path(folder, "other.safetensors"), _BYTES, label="other")
        for number in range(others):
            many.add({"name": f"other-{number:05d}", "artifact": {"path": str(artifact)}}, lazy=True)
        with connect(runtime_dirs[0]) as session, connect(runtime_dirs[1]) as other:
            sides = [_Side(many, session, Path(folder, "m")), _Side(few, other, Path(folder, "f"))]
            for side in sides:
                side.orders()  # whatever comes with the first of each
            turns = [_in_turns(sides, number) for number in range(repeats)]
    return {what: [[turn[side][what] for turn in turns] for side in range(2)] for what in turns[0][0]}


def _in_turns(sides: list[_Side], number: int) -> list[dict[str, int]]:
    """Have both sides give their orders, each of them first in every other turn."""
    if number % 2:
        return [side.orders() for side in sides[::-1]][::-1]
    return [side.orders() for side in sides]


class _Side:
    """One daemon, and its client."""

    def __init__(self, door: Admin, session: Session, prefix: Path) -> None:
        self._door, self._session, self._prefix = door, session, prefix
        self._numbers = count()

    def orders(self) -> dict[str, int]:
        """Give each order once; return the nanoseconds of each."""
        return dict(self._each())

    def _each(self) -> Iterator[tuple[str, int]]:
        door, name = self._door, f"one-{next(self._numbers):05d}"
        files = [Path(f"{self._prefix}-{name}-{version}.safetensors") for version in "12"]
        for file in files:
            write_checkpoint(file, _BYTES, label=file.name)
        first, second = (_manifest(name, version, file) for version, file in zip("12", files, strict=True))
        yield "add", _timed(lambda: door.add(first))
        yield "add, lazy", _timed(lambda: door.add(second, lazy=True))
        yield "show", _timed(lambda: door.show(name))
        yield "open", _timed(lambda: self._session.open(name).close())
        yield "alias", _timed(lambda: door.alias(name, "2"))
        yield "rm", _timed(lambda: door.remove(name, all_versions=True))
        for file in files:
            file.unlink()


def _manifest(name: str, version: str, path: Path) -> dict[str, Any]:
    return {"name": name, "version": version, "artifact": {"path": str(path)}}


def _timed(do: Callable[[], object]) -> int:
    began = time.perf_counter_ns()
    do()
    return time.perf_counter_ns() - began


PARTS = {"registered": Part(_TITLE, registered)}
