"""Tables of the benchmarks' document: the newest full record of each figure, from files and from a database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from repository import ROOT
from trims_bench.bench import keep
from trims_bench.measuring import Bar, Comparison, Figure, Samples
from trims_bench.report import in_database, in_folder, latest, main, markdown, readable, written

if TYPE_CHECKING:
    from pathlib import Path


def record(day: str, value: float, *, quick: bool = False) -> dict[str, Any]:
    compared = Comparison("c", value, "x", Bar(">=", 2), (Samples("a", [1_000_000]), Samples("b", [3], "bytes")))
    figure = Figure("open", "How long", [compared], ["A note."])
    machine = {"processor": "AMD EPYC"}
    return {
        "figure": figure.to_json(), "quick": quick, "date": f"2026-01-{day}T00:00:00", "commit": "0123456789ab",
        "machine": machine,
    }  # fmt: skip


def test_a_table_shows_the_newest_full_run_of_each_figure_and_its_machine() -> None:
    records = [record("01", 9.0), record("02", 1.5), record("03", 7.0, quick=True)]
    lines = markdown(latest(records), ["client"]).splitlines()
    assert lines[2:] == [
        "| client, **open** | 2026-01-02, 0123456, AMD EPYC | | | |",
        "|  | c | 1.00 ms | 3 B | **1.5 x (>= 2)** |",
    ]


def test_figures_of_another_scenario_are_not_in_a_table() -> None:
    assert len(markdown(latest([record("01", 9.0)]), ["books"]).splitlines()) == 2


def test_records_come_from_files_and_from_a_database(tmp_path: Path) -> None:
    (tmp_path / "2026-01-01-open.json").write_text(json.dumps(record("01", 9.0)))
    (tmp_path / "gpu-sound.json").write_text('{"parts": []}')
    url = f"sqlite:///{tmp_path / 'evaluations.db'}"
    keep(record("02", 3.0), url)
    found = [*in_folder(tmp_path), *in_database(url)]
    assert [each["figure"]["comparisons"][0]["value"] for each in found] == [9.0, 3.0]
    assert latest(found)["open"]["date"].startswith("2026-01-02")


def test_a_document_gets_its_tables_and_keeps_its_text(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text("Before.\n\n<!-- table: client -->\nold\n<!-- end of table -->\n\nAfter.\n")
    (tmp_path / "open.json").write_text(json.dumps(record("01", 9.0)))
    given = [str(document), "--results", str(tmp_path)]
    assert main([*given, "--check"]) == 1
    assert "old" in document.read_text()
    assert main(given) == 0
    text = document.read_text()
    assert text.startswith("Before.\n\n<!-- table: client -->\n\n| scenario, figure |")
    assert text.endswith("| 9 x (>= 2) |\n\n<!-- end of table -->\n\nAfter.\n")
    assert main([*given, "--check"]) == 0


def test_a_table_of_what_is_no_scenario_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="a table of 'warp'"):
        written("<!-- table: warp -->\n<!-- end of table -->", {})


def test_the_tables_of_our_document_are_those_of_the_recorded_results() -> None:
    document = (ROOT / "docs" / "benchmarks.md").read_text()
    assert written(document, latest(in_folder(ROOT / "bench" / "results"))) == document


@pytest.mark.parametrize(("unit", "text"), [("ns", "1.50 ms"), ("bytes", "1.4 MiB"), ("clients", "1.5e+06 clients")])
def test_sides_are_readable(unit: str, text: str) -> None:
    assert readable(unit, 1_500_000) == text
