"""Reports as CSV."""

from __future__ import annotations

import csv
import io

from evaluations import evaluated, samples
from trims_bench.evaluation.report.tables import COLUMNS, as_csv


def test_each_start_stage_and_batch_has_its_line() -> None:
    taken = [*samples("cpu", "fresh", 2.0), *samples("-", "hot", 1.0), *samples("-", "hot", 1.0, batch=2)]
    lines = list(csv.DictReader(io.StringIO(as_csv([evaluated(taken, model='m, "n"')]))))
    assert {each["model"] for each in lines} == {'m, "n"'}
    assert [(each["tier"], each["batch"], each["stage"], each["seconds"]) for each in lines[:3]] == [
        ("cpu", "1", "total", "2.0"), ("cpu", "1", "open", "1.5"), ("cpu", "1", "unattributed", "0.5"),
    ]  # fmt: skip
    assert [(each["batch"], each["rows_per_s"]) for each in lines if each["stage"] == "steady run"] == [
        ("1", "10.0"), ("2", "20.0"),
    ]  # fmt: skip
    assert as_csv([]) == ",".join(COLUMNS) + "\n"
