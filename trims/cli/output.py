"""Output of commands: tables and progress for people, JSON for programs.

Imported by every command, so `rich`, which takes longer to import than most commands take, is imported for a table on a
terminal and for progress only.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trims.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console

    from trims.control import Device, Loading, Replica
    from trims.control.answers import Transfer

#: Seconds between two lines of progress in a log.
_LINE_S = 10.0
#: Characters of control but for ends of lines and tabs, ends of lines that only some programs know, and marks that
#: turn the direction of what is written.
_FOLLOWED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@functools.cache
def console() -> Console:
    """Return a console that writes styled text to standard output."""
    from rich.console import Console

    return Console(highlight=False)


@functools.cache
def notes() -> Console:
    """Return a console that writes progress to standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def terminal_width() -> int | None:
    """Return the columns of the terminal that lines go to; None if they go elsewhere, and may have any length."""
    return console().width if console().is_terminal else None


def plain(text: str) -> str:
    """Return a text without what a terminal would follow: characters of control, and such as turn the direction.

    Names and descriptions are those that a model was published with. Ends of lines and tabs stay.
    """
    return _FOLLOWED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Print one line for a person."""
    sys.stdout.write(f"{plain(text)}\n")


def note(text: str) -> None:
    """Print one line on standard error."""
    sys.stderr.write(f"{plain(text)}\n")


def note_unconfirmed(watchers: Iterable[str]) -> None:
    """Print which endpoints did not confirm a change of models."""
    for each in watchers:
        note(f"not confirmed by {each}: requests that reach it may get what was before until it has the news")


def say_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, sort_keys=True) + "\n")


def say_json_line(value: Any) -> None:
    """Print one of many JSON documents, on a line of its own and at once."""
    sys.stdout.write(json.dumps(value, sort_keys=True) + "\n")
    sys.stdout.flush()


def say_done(options: argparse.Namespace, text: str, **facts: Any) -> None:
    """Print what a command has done: in a sentence, or with --json as its facts."""
    if options.json:
        say_json(facts)
    else:
        say(text)


def as_json(answer: Any) -> dict[str, Any]:
    """Return an answer of the daemon as JSON values. What is absent is left out."""
    found: dict[str, Any] = dataclasses.asdict(answer, dict_factory=_present)
    return found


def _present(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in items if value is not None}


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str = "") -> None:
    """Print a table, or a sentence if there is nothing in it. Columns that end in '>' are right-aligned.

    On a terminal that is too narrow, the first column gets lines of its own, above the others: what it names is never
    broken to pieces. Elsewhere each row is one line, however long, for programs such as grep.
    """
    cells = [[plain(cell).replace("\n", "\\n") for cell in row] for row in rows]
    if not cells:
        say(empty)
        return
    width = terminal_width()
    heading, *others = table_lines(columns, cells, width)
    heading_lines = 1 if len(others) == len(cells) else 2
    for number, line in enumerate([heading, *others]):
        console().print(line, style="bold" if number < heading_lines else None, markup=False, soft_wrap=True)


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Return the lines of a table, at most `width` columns wide if the first column allows; None for any width."""
    from rich.cells import cell_len, set_cell_size

    heading = [column.rstrip(">") for column in columns]
    right = [column.endswith(">") for column in columns]
    widths = [max(map(cell_len, column)) for column in zip(heading, *rows, strict=True)]

    def line(row: Sequence[str], begin: int = 0) -> str:
        aligned = zip(row[begin:], widths[begin:], right[begin:], strict=True)
        return "  ".join(set_cell_size(cell, size) if not flush else cell.rjust(size)
                         for cell, size, flush in aligned).rstrip()  # fmt: skip

    if width is None or sum(widths) + 2 * (len(widths) - 1) <= width:
        return [line(row) for row in [heading, *rows]]
    return [text for row in [heading, *rows] for text in (row[0], f"  {line(row, 1)}")]


def replica_row(replica: Replica) -> list[str]:
    """Return the columns of `REPLICA_COLUMNS`."""
    holders = ", ".join(f"{holder.agent} {holder.pid}".strip() for holder in replica.holders[:_HOLDERS])
    more = f" +{len(replica.holders) - _HOLDERS}" if len(replica.holders) > _HOLDERS else ""
    return [
        shown_name(replica),
        replica.place,
        replica.state,
        format_bytes(replica.nbytes),
        str(replica.leases),
        holders + more,
        until(replica),
    ]


def shown_name(replica: Replica) -> str:
    """Return the replica's registered names; else the file it was opened as; else the beginning of its key."""
    registered = [name for name in replica.names if not name.startswith("file:")]
    opened = next(iter(replica.names), replica.key[:16])
    if opened.startswith("file:") and not opened.startswith("file:/"):  # a load function's: options, identities
        opened = f"{re.split('[:,]', opened)[1]}:{opened[opened.index('/') :]}"
    return ", ".join(registered) or opened


def say_devices(devices: Iterable[Device]) -> None:
    """Print which device each place is, what its keeper holds and what is free: as lines, so that no UUID is broken."""
    for device in devices:
        keeper = f"process {device.keeper_pid}, {'with' if device.keeper_awake else 'without'} a context"
        free, total = device.free_bytes, device.total_bytes
        there = "not known" if free is None or total is None else f"{format_bytes(free)} of {format_bytes(total)}"
        say("")
        say(f"{device.place} is {device.name} {device.uuid}, shared by {device.driver or 'nothing'}")
        say(f"  weights: {format_bytes(device.weights_bytes)} of {format_bytes(device.capacity_bytes)}, "
            f"{device.leases} leases; free on the device: {there}")  # fmt: skip
        say(f"  keeper: {device.trouble or keeper}")


def say_transfers(transfers: Iterable[Transfer]) -> None:
    """Print what is being fetched and pushed, a line each."""
    for each in transfers:
        state = each.trouble if each.what == "damaged" else _how_far(each)
        say(f"{_TRANSFERS.get(each.what, each.what)} {each.address}: {state}")


def _how_far(transfer: Transfer) -> str:
    if not transfer.total_bytes:
        return "looking"
    share = f"{transfer.done_bytes / transfer.total_bytes:.0%} of {format_bytes(transfer.total_bytes)}"
    if transfer.trouble:
        return f"{share}, waiting: {transfer.trouble}"
    left = "" if transfer.left_s is None else f", {format_seconds(transfer.left_s)} left"
    return f"{share}, {format_bytes(round(transfer.bytes_per_s))}/s{left}"


_TRANSFERS = {"look": "looking at", "fetch": "fetching", "image": "fetching", "read": "reading",
              "push": "pushing to"}  # fmt: skip
#: Processes that are named in one row of `trims ps`; the others are counted.
_HOLDERS = 2
REPLICA_COLUMNS = ("model", "place", "state", "size>", "leases>", "held by", "until")


def until(replica: Replica) -> str:
    """Return how long the replica stays, as text."""
    if replica.state == "draining":
        return "last lease closes"
    if replica.pinned:
        return "unpinned"
    if replica.leases:
        return "leases close"
    if replica.keep_left_s is not None:
        return f"in {format_seconds(replica.keep_left_s)}"
    return "room is needed"


@contextmanager
def loading(name: str, quiet: bool) -> Iterator[Callable[[Loading], None]]:
    """Show a load's progress on standard error during the block. Yields what to call with it.

    A terminal gets a bar, a log a line now and then.
    """
    if quiet or not notes().is_terminal:
        yield _show_nothing if quiet else _Lines(name).show
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=notes(), transient=True) as progress:
        task = progress.add_task(plain(name), total=None)

        resumed = [0]

        def show(now: Loading) -> None:
            total = now.total_bytes or None
            here = now.done_bytes - now.fetched_bytes
            if now.phase == "fetching" and here > 0 and not resumed[0]:
                resumed[0] = here
                progress.print(plain(name) + f": {format_bytes(here)} are here already")
            whole = now.phase == "fetching" and now.done_bytes == now.total_bytes > 0
            phase = "verifying" if whole else now.phase
            progress.update(task, description=plain(f"{name}: {phase}"), completed=now.done_bytes, total=total)

        yield show


@dataclass(slots=True)
class _Lines:
    """Progress of a load as lines, for logs: one now and then, and none of a load that takes moments."""

    name: str
    _at_s: float = field(default_factory=time.monotonic)

    def show(self, now: Loading) -> None:
        if now.done or time.monotonic() - self._at_s < _LINE_S:
            return
        self._at_s = time.monotonic()
        done = f" {now.done_bytes / now.total_bytes:.0%} of {format_bytes(now.total_bytes)}" if now.total_bytes else ""
        note(f"{self.name}: {now.phase}{done}")


def _show_nothing(_: Loading) -> None:
    """Ignore the progress of a load."""
