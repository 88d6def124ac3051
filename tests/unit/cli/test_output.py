"""Output of commands: tables and sentences for people, JSON for programs."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from operators import DEVICE, MODEL, a_replica
from rich.console import Console

from trims.cli import output
from trims.control import Holder, Loading
from trims.core.units import format_seconds

HOLDERS = tuple(Holder(number, 100 + number, 0, "test", 1) for number in range(6))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"state": "draining", "pinned": True, "leases": 1}, "last lease closes"),
        ({"pinned": True, "leases": 1}, "unpinned"),
        ({"leases": 1, "keep_left_s": 5.0}, "leases close"),
        ({"keep_left_s": 0.0}, f"in {format_seconds(0.0)}"),
        ({}, "room is needed"),
    ],
)
def test_the_strongest_reason_to_stay_is_the_one_that_is_told(fields: dict[str, object], words: str) -> None:
    assert output.until(a_replica(**fields)) == words


def test_a_replica_is_called_by_its_models_then_its_file_then_its_key() -> None:
    assert output.shown_name(a_replica(names=("file:/x", "a", "b"))) == "a, b"
    assert output.shown_name(a_replica(names=("file:/x", "file:/y"))) == "file:/x"
    assert output.shown_name(a_replica(names=("file:bytes:1:2:3:4:5:/x/y",))) == "bytes:/x/y"
    assert output.shown_name(a_replica(names=())) == "0123456789abcdef"


def test_of_many_holders_the_first_are_listed_and_the_rest_counted() -> None:
    columns = [name.rstrip(">") for name in output.REPLICA_COLUMNS]
    for holders, told in ((HOLDERS, "test 100, test 101 +4"), (HOLDERS[:2], "test 100, test 101"), ((), "")):
        row = dict(zip(columns, output.replica_row(a_replica(holders=holders, leases=2)), strict=True))
        assert row["held by"] == told
        assert (row["size"], row["leases"], row["until"]) == ("2.0 KiB", "2", "leases close")


HOSTILE = "a\x1b[2Jb\r\x9b\u202ec\u2066"
SHOWN = "a\\x1b[2Jb\\r\\x9b\\u202ec\\u2066"


# fault (stores): escapes in a publisher's text -> nothing, or `bad_manifest`
def test_nothing_that_a_terminal_would_follow_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(HOSTILE)
    output.note(HOSTILE)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (f"{SHOWN}\n", f"{SHOWN}\n")
    assert output.plain("née 模型\tone\ntwo") == "née 模型\tone\ntwo"


def test_a_cell_of_a_table_is_one_line_without_what_a_terminal_would_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console = Console(file=io.StringIO(), width=100)
    monkeypatch.setattr(output, "console", lambda: console)
    output.table(["model"], [[f"{HOSTILE}\nsuccess"]])
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[-1] == f"{SHOWN}\\nsuccess"


def test_json_leaves_out_what_is_absent_and_keeps_what_is_empty() -> None:
    model = replace(MODEL, replicas=(a_replica(), a_replica(keep_left_s=0.0)))
    shown = output.as_json(model)
    assert shown["version"] == "1.0.0"
    assert shown["description"] == ""
    assert "keep_left_s" not in shown["replicas"][0]
    assert shown["replicas"][1]["keep_left_s"] == 0.0


def test_a_document_may_have_many_lines_and_one_of_many_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"b": [1, 2], "a": "é\n"}
    output.say_json(value)
    assert json.loads(capsys.readouterr().out) == value
    output.say_json_line(value)
    assert capsys.readouterr().out == '{"a": "\\u00e9\\n", "b": [1, 2]}\n'


def test_an_empty_table_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("model", "size>"), [], empty="nothing is resident")
    assert capsys.readouterr().out == "nothing is resident\n"
    output.table(("model", "size>"), [("bert", "1"), ("a", "100")], empty="nothing is resident")
    assert capsys.readouterr().out.splitlines() == ["model  size", "bert      1", "a       100"]


def test_a_device_says_its_keeper_or_what_troubles_it(capsys: pytest.CaptureFixture[str]) -> None:
    output.say_devices([DEVICE, replace(DEVICE, free_bytes=1 << 29, trouble="it is gone")])
    first, second = capsys.readouterr().out.split("\n\n")
    assert "gpu:0 is H200 GPU-1, shared by vmm" in first
    assert "weights: 1.0 MiB of 1.0 GiB, 2 leases; free on the device: not known" in first
    assert "keeper: process 7, with a context" in first
    assert "free on the device: 512.0 MiB of 2.0 GiB" in second
    assert "keeper: it is gone" in second


def test_progress_is_shown_on_a_terminal_only_and_never_when_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, quiet, shows in ((True, False, True), (True, True, False), (False, False, False)):
        written = io.StringIO()
        console = Console(file=written, force_terminal=terminal, width=120, _environ={})
        monkeypatch.setattr(output, "notes", lambda made=console: made)
        with output.loading("bert", quiet) as show:
            show(Loading("filling", 5, 10, False, None))
        assert ("bert: filling" in written.getvalue()) is shows


ROWS = [["/a/long/path", "12", "x"], ["[b]", "7", "y z"]]


def test_a_table_is_one_line_a_row_wherever_it_fits_or_is_read_by_a_program() -> None:
    lines = ["model         size  where", "/a/long/path    12  x", "[b]              7  y z"]
    for width in (None, 25, 100):
        assert output.table_lines(("model", "size>", "where"), ROWS, width) == lines


def test_on_a_narrow_terminal_the_first_column_gets_lines_of_its_own() -> None:
    lines = ["model", "  size  where", "/a/long/path", "    12  x", "[b]", "     7  y z"]
    assert output.table_lines(("model", "size>", "where"), ROWS, 24) == lines
