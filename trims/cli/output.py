"""What commands print: tables and progress for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from trims.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.message import Message

    from trims.wire import trims_pb2 as pb

console = Console(highlight=False)
notes = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """One line for a person."""
    console.print(text, markup=False, soft_wrap=True)


def note(text: str) -> None:
    """One line on standard error."""
    notes.print(text, markup=False, soft_wrap=True)


def say_json(value: Any) -> None:
    """One JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, sort_keys=True) + "\n")


def say_json_line(value: Any) -> None:
    """One of many JSON documents, on a line of its own and at once."""
    sys.stdout.write(json.dumps(value, sort_keys=True) + "\n")
    sys.stdout.flush()


def as_json(message: Message) -> Any:
    """A protobuf message as JSON values, with the field names of the .proto and numbers as numbers."""
    raw = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return _numbers(raw)


def _numbers(value: Any) -> Any:
    """64-bit integers, which protobuf's JSON writes as text, as numbers again."""
    if isinstance(value, dict):
        return {key: _number(key, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return value


_COUNTS = ("_bytes", "nbytes", "uses", "generation", "session")


def _number(key: str, value: Any) -> Any:
    if key == "counters":
        return {name: int(count) for name, count in value.items()}
    if isinstance(value, str) and key.endswith(_COUNTS):
        return int(value)
    return _numbers(value)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """A table, or a sentence if there is nothing in it. Columns that end in '>' are right-aligned."""
    made = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))  # as it is: square brackets are no markup
    if made.row_count:
        console.print(made)
    else:
        say(empty)


def replica_row(replica: pb.Replica) -> list[str]:
    """The columns of `REPLICA_COLUMNS`."""
    holders = ", ".join(str(holder.pid) for holder in replica.holders[:4])
    more = f" +{len(replica.holders) - 4}" if len(replica.holders) > 4 else ""
    return [
        shown_name(replica),
        replica.place,
        replica.state,
        format_bytes(replica.nbytes),
        str(replica.leases),
        holders + more,
        until(replica),
    ]


def shown_name(replica: pb.Replica) -> str:
    """Its registered names; else the file it was opened as; else the beginning of its key."""
    registered = [name for name in replica.names if not name.startswith("file:")]
    return ", ".join(registered) or next(iter(replica.names), replica.key[:16])


def say_devices(devices: Iterable[pb.Device]) -> None:
    """Which device each place is, what its keeper holds and what else is free: lines, so that no UUID is broken."""
    for device in devices:
        keeper = f"process {device.keeper_pid}, {'with' if device.keeper_awake else 'without'} a context"
        known = device.HasField("free_bytes")
        there = f"{format_bytes(device.free_bytes)} of {format_bytes(device.total_bytes)}" if known else "not known"
        say("")
        say(f"{device.place} is {device.name} {device.uuid}, shared by {device.driver or 'nothing'}")
        say(f"  weights: {format_bytes(device.weights_bytes)} of {format_bytes(device.capacity_bytes)}, "
            f"{device.leases} leases; free on the device: {there}")  # fmt: skip
        say(f"  keeper: {device.trouble or keeper}")


REPLICA_COLUMNS = ("model", "place", "state", "size>", "leases>", "held by", "until")


def until(replica: pb.Replica) -> str:
    """How long the replica stays."""
    if replica.state == "draining":
        return "last lease closes"
    if replica.pinned:
        return "unpinned"
    if replica.leases:
        return "leases close"
    if replica.HasField("keep_left_s"):
        return f"in {format_seconds(replica.keep_left_s)}"
    return "room is needed"


def loading(name: str, messages: Iterable[pb.LoadProgress], *, quiet: bool) -> pb.LoadProgress:
    """Show a load's progress on standard error; returns its last message."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    last = None
    with Progress(*columns, console=notes, disable=quiet or not notes.is_terminal, transient=True) as progress:
        task = progress.add_task(name, total=None)
        for last in messages:
            total = last.total_bytes or None
            progress.update(task, description=f"{name}: {last.phase}", completed=last.done_bytes, total=total)
    assert last is not None, "the last message of a load says done"
    return last
