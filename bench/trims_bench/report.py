"""Raw results as a Markdown table: `python -m trims_bench.report bench/results [NAME ...]`, for docs/benchmarks.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.units import format_bytes, format_seconds
from trims_bench.scenarios import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def latest(folder: Path, names: Sequence[str] = NAMES) -> dict[str, dict[str, Any]]:
    """The newest full record of each figure, in the order of the names. Quick runs do not count."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        if not record["quick"]:
            found[record["figure"]["name"]] = record
    return {name: found[name] for name in names if name in found}


def markdown(records: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The table, then what the reader must know of each figure."""
    yield "| figure | compared | trims | other side | value (bar) |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for name, record in records.items():
        for number, compared in enumerate(record["figure"]["comparisons"]):
            yield _row("" if number else name, compared)
    yield ""
    for name, record in records.items():
        notes = " ".join(record["figure"]["notes"])
        yield f"- **{name}**: {record['figure']['title']}. {notes}"


def _row(name: str, compared: Mapping[str, Any]) -> str:
    both = zip(compared["sides"], compared["medians"], strict=True)
    sides = [readable(side["unit"], middle) for side, middle in both]
    bar = compared["bar"]
    value = f"{compared['value']:.3g} {compared['unit']}"
    if bar:
        value += f" ({bar['relation']} {bar['limit']:g})"
    if compared["reached"] is False:
        value = f"**{value}**"
    return f"| {' | '.join([name, compared['what'], *[*sides, '', ''][:2], value])} |"


def readable(unit: str, middle: float) -> str:
    """The middle of a side's samples as text."""
    if unit == "ns":
        return format_seconds(middle / 1e9)
    return format_bytes(int(middle)) if unit == "bytes" else f"{middle:g} {unit}"


if __name__ == "__main__":
    print("\n".join(markdown(latest(Path(sys.argv[1]), sys.argv[2:] or NAMES))))
