"""An evaluation's file: it goes on after any interruption, and only one process writes at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from trims_predictors.evaluation import journal
from trims_predictors.evaluation.evaluation import Sample
from trims_predictors.evaluation.journal import Asked, Journal

from trims.core.errors import BusyError, CallerError

if TYPE_CHECKING:
    from pathlib import Path

ASKED = Asked("20260101-1", "m", "key", ("cpu",), ("fresh",), 3, 7.5, {"processors": 2})
SAMPLES = [
    Sample("cpu", "fresh", 0, 0.5, {"open": 0.4, "unattributed": 0.1}, (0.1, 0.2), "digest", "trace"),
    Sample("cpu", "fresh", 1, why_not="the state was not cpu"),
]


def begun(folder: Path, asked: Asked = ASKED) -> Path:
    made = Journal(folder)
    made.begin(asked)
    for sample in SAMPLES:
        made.add(sample)
    made.close()
    return made.path


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    assert journal.read(begun(tmp_path)) == (ASKED, SAMPLES)


def test_an_evaluation_goes_on_after_its_process_was_killed_while_it_wrote(tmp_path: Path) -> None:
    path = begun(tmp_path)
    with path.open("a") as file:
        file.write('{"tier": "cpu", "way": "fre')
    again = Journal(tmp_path)
    assert again.go_on("2026") == (ASKED, SAMPLES)
    again.add(SAMPLES[0])
    again.close()
    assert journal.read(path) == (ASKED, [*SAMPLES, SAMPLES[0]])


def test_two_evaluations_do_not_run_at_once(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    with pytest.raises(BusyError):
        Journal(tmp_path)
    first.close()
    Journal(tmp_path).close()


def test_an_id_must_be_of_one_evaluation(tmp_path: Path) -> None:
    begun(tmp_path)
    begun(tmp_path, Asked("20260102-2", "m", "key", ("cpu",), ("fresh",), 3, 7.5, {}))
    for wrong in ("2026", "2027"):
        with pytest.raises(CallerError):
            journal.find(tmp_path, wrong)
    assert journal.find(tmp_path, "20260102").stem == "20260102-2"
    assert [each.stem for each in journal.files(tmp_path)] == ["20260101-1", "20260102-2"]


@pytest.mark.parametrize("text", ["", "no json\n", '{"trims": 2}\n', '{"trims": 1, "id": "x"}\n', "[1]\n"])
def test_a_file_that_is_none_of_this_version_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(CallerError):
        journal.read(tmp_path / "x.jsonl")
