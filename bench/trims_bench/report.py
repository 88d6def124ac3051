"""Tables of docs/benchmarks.md: `python -m trims_bench.report docs/benchmarks.md` writes them again, in place.

A table lies between `<!-- table: SCENARIO ... -->` and `<!-- end of table -->`, and has the newest full record of each
figure, from the files in a folder of raw results and, with `--database`, from a database. `--check` changes nothing and
ends with status 1 if a table is not what would be written.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.units import format_bytes, format_seconds
from trims_bench.scenarios import NAMES, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

#: Figures with so many rows that a picture shows them.
_PICTURED = ("plane",)
_TABLE = re.compile(r"(<!-- table: (?P<names>[a-z ]+) -->\n)(?P<table>.*?)(<!-- end of table -->)", re.DOTALL)
_HEAD = "| scenario, figure | compared | trims | other side | value (bar) |\n| --- | --- | ---: | ---: | ---: |\n"


def in_folder(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield all records of a folder of raw results, but those of GPU checks, which have a form of their own."""
    for path in sorted(folder.glob("*.json")):
        kept = json.loads(path.read_text())
        if "figure" in kept:
            yield kept


def in_database(url: str) -> Iterator[dict[str, Any]]:
    """Yield all records that a database keeps."""
    from trims_bench.evaluation.database.evaluations import Evaluations
    from trims_bench.evaluation.records import FIGURE

    with Evaluations(url) as evaluations:
        for each in evaluations.summaries():
            yield from evaluations.read(each.id).documents.get(FIGURE, ())


def latest(records: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the newest full record of each figure. Quick runs do not count."""
    found: dict[str, Mapping[str, Any]] = {}
    for record in sorted(records, key=lambda each: str(each.get("date", ""))):
        if not record["quick"]:
            found[record["figure"]["name"]] = record
    return found


def markdown(records: Mapping[str, Mapping[str, Any]], scenarios: Sequence[str]) -> str:
    """Return a table of the figures of scenarios, with when and where each was measured."""
    lines: list[str] = []
    for scenario in scenarios:
        for name in parts_of(scenario):
            if name in records and name not in _PICTURED:
                lines += _rows(scenario, name, records[name])
    return _HEAD + "".join(f"{line}\n" for line in lines)


def _rows(scenario: str, name: str, record: Mapping[str, Any]) -> Iterator[str]:
    title = f"**{name}**" if name == scenario else f"{scenario}, **{name}**"
    where = record.get("machine", {}).get("processor", "")
    short = re.sub(r"\(R\)|Processor", "", where).strip()
    yield f"| {title} | {record.get('date', '')[:10]}, {record.get('commit', '')[:7]}, {short} | | | |"
    comparisons = record["figure"]["comparisons"]
    for compared in [each for each in comparisons if each["bar"]] or comparisons:
        yield _row(compared)


def _row(compared: Mapping[str, Any]) -> str:
    both = zip(compared["sides"], compared["medians"], strict=True)
    sides = [readable(side["unit"], middle) for side, middle in both]
    bar = compared["bar"]
    value = f"{compared['value']:.3g} {compared['unit']}"
    if bar:
        value += f" ({bar['relation']} {bar['limit']:g})"
    if compared["reached"] is False:
        value = f"**{value}**"
    return f"| {' | '.join(['', compared['what'], *[*sides, '', ''][:2], value])} |"


def readable(unit: str, middle: float) -> str:
    """Return the middle of a side's samples as text."""
    if unit == "ns":
        return format_seconds(middle / 1e9)
    return format_bytes(int(middle)) if unit == "bytes" else f"{middle:g} {unit}"


def written(text: str, records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a document with its tables written again. Raises ValueError if one names what is no scenario."""

    def table(found: re.Match[str]) -> str:
        names = found["names"].split()
        for name in names:
            if name not in NAMES:
                raise ValueError(f"the document has a table of {name!r}; scenarios are {', '.join(NAMES)}")
        return f"{found[1]}\n{markdown(records, names)}\n{found[4]}"

    return _TABLE.sub(table, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables of a document again, or compare them."""
    parser = argparse.ArgumentParser(prog="trims_bench.report", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("document", type=Path, help="that has tables")
    parser.add_argument(
        "--results", type=Path, default=Path("bench/results"), help="raw results (default: %(default)s)"
    )
    parser.add_argument("--database", default="", help="URL of a database of evaluations")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if a table differs")
    options = parser.parse_args(arguments)
    records = [*in_folder(options.results), *(in_database(options.database) if options.database else ())]
    before = options.document.read_text()
    after = written(before, latest(records))
    if options.check:
        return 0 if after == before else 1
    options.document.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
