"""Lists of the documents agree with the code."""

from __future__ import annotations

import itertools
import re
import runpy
from dataclasses import fields

from repository import ROOT
from trims_predictors.endpoint.generate.openai_requests import CHAT, COMPLETIONS, DEFAULTS, HONOURED, NOT_OFFERED

from trims.core.errors import error_classes
from trims.core.layout import DTYPES
from trims.core.replica import TRANSITIONS, State
from trims.daemon.config import Config

DOCS = ROOT / "docs"


def table_rows(document: str, columns: int) -> list[list[str]]:
    """The cells of every table row with so many columns."""
    lines = (DOCS / document).read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in rows if len(row) == columns and not set(row[0]) <= {"-", " "}]


def table_under(document: str, *heading: str) -> list[list[str]]:
    """The rows of the one table whose heading begins with these cells."""
    lines = (DOCS / document).read_text().splitlines()
    begin = "| " + " | ".join(heading) + " |"
    (at,) = [number for number, line in enumerate(lines) if line.startswith(begin)]
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[at + 2 :])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]


def test_the_table_of_transitions_is_the_codes() -> None:
    states = {state.value for state in State}
    told = {(row[0], row[1]): row[2] for row in table_rows("design.md", 3) if row[0] in states and row[1] in states}
    assert told == {(old.value, new.value): why for (old, new), why in TRANSITIONS.items()}


def test_every_state_is_described_and_no_other() -> None:
    described = [row[0] for row in table_under("design.md", "state", "charged to capacity")]
    assert sorted(described) == sorted({state.value for state in State} - {"absent"})


def test_every_setting_is_documented_and_no_other() -> None:
    named = {
        name
        for row in table_under("operations.md", "setting", "default")
        for name in re.findall(r"`([a-z_]+)`", row[0])
    }
    assert {item.name for item in fields(Config)} == named


def test_every_error_code_is_documented_once_and_no_other() -> None:
    rows = table_under("protocol.md", "code", "culprit")
    named = [code for row in rows for code in re.findall(r"`([a-z_]+)`", row[0])]
    assert sorted(named) == sorted(set(error_classes()) - {"trims"})


def test_the_dtype_numbers_are_the_codes() -> None:
    text = (DOCS / "protocol.md").read_text()
    told = re.findall(r"(\d+) ([A-Z][A-Z0-9_]+)", text[text.index("dtype numbers:") : text.index("**Program**")])
    assert [(int(number), name) for number, name in told] == list(enumerate(DTYPES))


def test_the_page_of_faults_is_what_its_tool_writes_from_the_tests() -> None:
    found = runpy.run_path(str(ROOT / "tools" / "fault_table.py"))
    assert (DOCS / "faults.md").read_text() == found["page"](), "run tools/fault_table.py"


def test_readme_and_documents_stay_within_their_bounds() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    words = sum(len(re.findall(r"\S*\w\S*", file.read_text())) for file in DOCS.glob("*.md"))
    assert words <= 40_000


def test_every_field_of_openais_routes_is_documented_as_it_is_taken() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table_under("hugging-face.md", "route", "fields that are followed")}
    assert rows.keys() == HONOURED.keys()
    for route, row in rows.items():
        # The row of chat refers to that of completions for what both have.
        both = [f"{cell} {other}" for cell, other in zip(row, rows[COMPLETIONS], strict=True)] if route == CHAT else row
        for table, own, stated in zip((HONOURED, DEFAULTS, NOT_OFFERED), row, both, strict=True):
            names = set(re.findall(r"`([a-z_]+)", stated))
            assert set(table[route]) <= names, route
            words = {"none", "auto", "default"}
            assert set(re.findall(r"`([a-z_]+)", own)) - words - set(table[route]) <= {"best_of", "suffix"}, route
