"""How `trims trace` prints a trace; whole runs are in tests/e2e/test_trace_command.py."""

from __future__ import annotations

import json

import pytest
from recorded import a_request
from trims_predictors.cli.trace import _tell_list, show


def test_a_tree_is_printed_with_times_shares_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    show(a_request(), 0.0, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines[0] == ["open", "client", "0.000", "ms", "100.0%", "model=m"]
    assert lines[2] == ["plan", "daemon", "0.000", "ms", "20.0%", "image=4.0", "KiB"]
    assert lines[4][:3] == ["copy", "daemon", "unfinished"]
    assert lines[-1][0] == "unattributed"


def test_json_has_every_line_and_a_list_one_object_for_each_trace(capsys: pytest.CaptureFixture[str]) -> None:
    show(a_request(), 0.0, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["spans"], len(told["lines"])) == ("open", 5, 7)
    assert told["lines"][1]["parent_id"] == told["lines"][0]["span_id"]
    _tell_list([a_request()], as_json=True)
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["trace_id"], listed["seconds"]) == (told["trace_id"], pytest.approx(100e-9))
    _tell_list([a_request()], as_json=False)
    assert capsys.readouterr().out.split()[0] == told["trace_id"]
