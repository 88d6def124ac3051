"""How `trims trace` prints a trace; whole runs are in tests/e2e/test_trace_command.py."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from recorded import a_request, span, trace
from trims_predictors.cli.trace import _print_list, show

from trims.cli.main import build_parser
from trims.core.errors import CallerError
from trims.trace.reader import summarize
from trims.trace.span import FAILURE

if TYPE_CHECKING:
    from pathlib import Path


def build(words: list[str]) -> None:
    options = build_parser("trace").parse_args(words)
    options.run(options)


def test_a_tree_is_printed_with_times_shares_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    show(a_request(), 0.0, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines[0] == ["open", "client", "0.000", "ms", "100.0%", "model=m"]
    assert lines[2] == ["plan", "daemon", "0.000", "ms", "20.0%", "image=4.0", "KiB"]
    assert lines[4][:3] == ["copy", "daemon", "unfinished"]
    assert lines[-1][0] == "unattributed"


def test_a_failure_s_text_is_cut_to_one_line_and_is_whole_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    text = "ValueError: no such thing\n" * 200
    failed = trace(span("run", 1000, 1100, **{FAILURE: text}))
    show(failed, 0.0, as_json=False)
    _, line = capsys.readouterr().out.splitlines()
    assert (len(line), line[-3:], "ValueError: no such thing ValueError" in line) == (200, "...", True)
    show(failed, 0.0, as_json=True)
    assert json.loads(capsys.readouterr().out)["lines"][0]["attributes"][FAILURE] == text


def test_json_has_every_line_and_a_list_one_object_for_each_trace(capsys: pytest.CaptureFixture[str]) -> None:
    show(a_request(), 0.0, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["spans"], len(told["lines"])) == ("open", 5, 7)
    assert told["lines"][1]["parent_id"] == told["lines"][0]["span_id"]
    summaries = list(summarize(a_request().spans).values())
    _print_list(summaries, as_json=True)
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed.items() <= told.items()
    assert (listed["seconds"], listed["spans"], listed["processes"]) == (pytest.approx(100e-9), 5, 2)
    _print_list(summaries, as_json=False)
    assert capsys.readouterr().out.split()[0] == told["trace_id"]


@pytest.mark.parametrize(
    "words", [["--last", "--limit=1"], ["--list", "--limit=0"], ["--list", "--limit=1", "--export=x.json"]]
)
def test_a_limit_that_cannot_be_kept_is_refused(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="--limit"):
        build(["trace", *words, f"--folder={tmp_path}"])


def test_a_list_without_traces_is_empty_and_exports_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(["trace", "--list", "--json", f"--folder={tmp_path}"])
    assert json.loads(capsys.readouterr().out) == []
    with pytest.raises(CallerError, match="nothing to export"):
        build(["trace", "--list", "--export=x.json", f"--folder={tmp_path}"])
