"""What the documents list is what the code has."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from trims.core.errors import error_classes
from trims.core.layout import DTYPES
from trims.core.replica import TRANSITIONS, State
from trims.daemon.config import Config

DOCS = Path(__file__).parents[2] / "docs"


def table_rows(document: str, columns: int) -> list[list[str]]:
    """The cells of every table row with so many columns."""
    lines = (DOCS / document).read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in rows if len(row) == columns and not set(row[0]) <= {"-", " "}]


def test_the_table_of_transitions_is_the_codes() -> None:
    states = {state.value for state in State}
    told = {(row[0], row[1]): row[2] for row in table_rows("design.md", 3) if row[0] in states and row[1] in states}
    assert told == {(old.value, new.value): why for (old, new), why in TRANSITIONS.items()}


def test_every_state_is_described() -> None:
    described = {row[0] for row in table_rows("design.md", 4)}
    assert {state.value for state in State} - {"absent"} <= described


def test_every_setting_is_documented_and_no_other() -> None:
    named = {name for row in table_rows("operations.md", 3) for name in re.findall(r"`([a-z_]+)`", row[0])}
    assert {item.name for item in fields(Config)} == named


def test_every_error_code_is_documented() -> None:
    named = {code for row in table_rows("protocol.md", 3) for code in re.findall(r"`([a-z_]+)`", row[0])}
    assert set(error_classes()) - {"trims"} == named & set(error_classes())


def test_the_dtype_numbers_are_the_codes() -> None:
    text = (DOCS / "protocol.md").read_text()
    told = re.findall(r"(\d+) ([A-Z][A-Z0-9_]+)", text[text.index("dtype numbers:") : text.index("**Program**")])
    assert [(int(number), name) for number, name in told] == list(enumerate(DTYPES))


def test_every_test_file_the_fault_table_names_is_there() -> None:
    root = DOCS.parent
    named = set(re.findall(r"tests/\w+/\w+\.py", (DOCS / "faults.md").read_text()))
    assert named
    assert [name for name in sorted(named) if not (root / name).exists()] == []


def test_every_test_the_fault_table_names_is_there() -> None:
    named = re.findall(r"(test_\w+)\.py::(test_\w+)", (DOCS / "faults.md").read_text())
    sources = {path.stem: path.read_text() for path in (DOCS.parent / "tests").rglob("test_*.py")}
    assert len(named) > 10
    assert [name for file, name in named if f"def {name}" not in sources[file]] == []
