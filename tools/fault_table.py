"""Write docs/faults.md from the comments beside the tests: `python tools/fault_table.py`.

A comment `# fault (ROOM): WHAT HAPPENS -> WHAT IS SEEN; WHAT STAYS` stands above a test, or below the docstring of a
module of which all tests hold it; further lines begin with `#`. The same comment without `->` names one more test.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "faults.md"
ROOMS = {
    "clients": "Clients",
    "daemon": "The daemon",
    "environments": "Environments",
    "converters": "Converters",
    "capacity": "Capacity",
    "damage": "Damaged files and memory",
    "folders": "Folders of Hugging Face models",
    "orders": "Orders of events",
    "in place": "Artifacts in place",
    "gpus": "GPUs",
    "templates": "Templates of the endpoint",
    "exec": "Programs by `trims exec`",
    "code": "Code of models",
    "endpoint": "Clients of the endpoint",
    "loads": "Loads of `trims eval --scenario`",
    "hub": "The Hugging Face hub and its cache",
    "sources": "Sources and transfers",
    "stores": "Object stores",
}
_HEAD = """# Faults

Each row is one fault, what a client sees of it, what stays, and the test that proves it. "Nothing" means that no client
gets an error; all other clients are served meanwhile. GPUs were tested on a fake driver; see
[what a device has shown](operations.md#what-a-device-has-shown). `python tools/fault_table.py` writes this page.
"""
_FAULT = re.compile(r"^ *# fault \((?P<room>[a-z ]+)\): (?P<text>.*(?:\n *# (?!fault \().*)*)\n", re.MULTILINE)
#: A test right below a comment, with its decorators between them.
_TEST = re.compile(r"(?: *#[^\n]*\n)*(?= *[@ad]).*?^ *(?:async )?def (test_\w+)", re.MULTILINE | re.DOTALL)


class Fault(NamedTuple):
    """One comment: its room, what happens, the outcome (empty for one more test), and the test."""

    room: str
    happens: str
    outcome: str
    test: str


def faults() -> Iterator[Fault]:
    """Yield the comments of all tests, by file and line."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        source = file.read_text(encoding="utf-8")
        for found in _FAULT.finditer(source):
            happens, _, outcome = re.sub(r"\s*\n *# ", " ", found["text"]).partition(" -> ")
            test = str(file.relative_to(ROOT / "tests"))
            if named := _TEST.match(source, found.end()):
                test += f"::{named[1]}"
            yield Fault(found["room"], happens, outcome, test)


def page() -> str:
    """Return the page: a table for each room."""
    found = list(faults())
    rows: dict[tuple[str, str], list[Fault]] = {(each.room, each.happens): [] for each in found if each.outcome}
    for each in found:
        rows[each.room, each.happens].append(each)
    parts = [_HEAD]
    for room, title in ROOMS.items():
        parts.append(f"\n## {title}\n\n| what happens | what is seen; what stays | test |\n| --- | --- | --- |\n")
        for (where, happens), tests in rows.items():
            if where == room:
                (outcome,) = [each.outcome for each in tests if each.outcome]
                names = ", ".join(f"`{each.test}`" for each in tests)
                parts.append(f"| {happens} | {outcome} | {names} |\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
