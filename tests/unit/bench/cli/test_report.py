"""Where `trims report` looks, without a daemon; reports of evaluations are in tests/e2e/test_evaluations.py."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from evaluations import evaluated, samples
from trims_bench.evaluation.database.evaluations import Evaluations
from trims_bench.evaluation.records import Taken

from trims.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'e.db'}"
    with Evaluations(url) as kept:
        for number, seconds in (("1", 1.0), ("2", 2.0)):
            order = evaluated([], evaluation_id=number).order
            kept.begin(order, 5)
            for each in samples("cpu", "fresh", seconds):
                kept.add(number, Taken(each))
            kept.end(number, {})
    return url


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["report", *arguments]) == 0
    return capsys.readouterr().out


def test_evaluations_are_listed_shown_and_compared(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(told(capsys, "--database", database, "--json"))
    assert [(each["id"], each["samples"], each["ended"]) for each in listed] == [("1", 5, True), ("2", 5, True)]
    compared = json.loads(told(capsys, "1", "2", "--explain", "--database", database, "--json"))
    assert compared["explained"]["changes"][0]["ratio"] == 2.0
    assert "2.00x" in told(capsys, "1", "2", "--explain", "--database", database)
    assert told(capsys, "1", "--csv", "--database", database).count("\n") == 4


def test_the_variable_names_the_database(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIMS_EVALUATIONS", database)
    assert [line.split()[0] for line in told(capsys).splitlines()] == ["2", "1"]


def test_a_file_that_cannot_be_written_is_named(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "1", "--html", "/no/such/folder/r.html", "--database", database]) == 1
    assert "/no/such/folder/r.html" in capsys.readouterr().err
