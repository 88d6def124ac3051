"""The words of `trims call`, and what it prints; what it does is in test_invoking.py."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fleets import SUPPORT, register
from trims_predictors.cli.call import _checked, handler_in, report_lines
from trims_predictors.cli.call import register as add_command
from trims_predictors.cli.invocations import Invocation, Invoked

from trims.core.errors import CallerError, ConfigError, PredictorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

HANDLERS = f"{SUPPORT}/own_handlers.py"
#: The command alone: whether it is installed is tested with the help of `trims`.
PROGRAM = """
import argparse, sys
from trims_predictors.cli.call import register
parser = argparse.ArgumentParser()
parser.add_argument("--runtime-dir")
register(parser.add_subparsers())
options = parser.parse_args()
try:
    options.run(options)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def call(
    daemon: Daemon, checkpoint: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """`trims call` with the handlers of the tests and the model `m`; returns standard output and standard error."""
    register(daemon, checkpoint)

    def once(*words: str, name: str = ":handler") -> tuple[str, str]:
        options = parse(
            "--runtime-dir", str(daemon.config.runtime_dir), "call", HANDLERS + name, "--model", "m", *words
        )
        options.run(options)
        found = capfd.readouterr()
        return found.out, found.err

    return once


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime-dir")
    add_command(parser.add_subparsers())
    return parser.parse_args(words)


def test_the_answer_is_alone_on_standard_output_and_the_stages_are_beside(
    call: Callable[..., tuple[str, str]],
) -> None:
    out, err = call("--event", '{"x": 2}', "--repeat", "3", "--compare", name="")
    assert json.loads(out)["y"] == 4.0
    lines = err.splitlines()
    assert "cold: forked; weights at cpu, loaded for it" in lines
    (heading,) = (line for line in lines if line.startswith("stage"))
    assert heading.split("  ")[-1] == "fresh process"
    assert "warm, median of 3" in heading
    assert lines[-1].startswith("total ")


def test_everything_is_json_on_request(call: Callable[..., tuple[str, str]]) -> None:
    found = json.loads(call("--event", '{"x": 2}', "--repeat", "1", "--compare", "--json")[0])
    assert found["answer"]["y"] == 4.0
    assert (found["cold"]["start"], found["cold"]["resident"]) == ("forked", False)
    assert [each["start"] for each in (*found["warm"], found["fresh"])] == ["running", "spawned"]
    assert "handler_s" in found["warm"][0]["stages"]
    assert (found["later_cold"], found["learned"]) == ([], [])


def test_later_cold_starts_are_apart_from_the_first_in_the_table_and_in_json(
    call: Callable[..., tuple[str, str]],
) -> None:
    words = ("--event", '{"x": 2}', "--cold-repeat", "2")
    (heading,) = (line for line in call(*words)[1].splitlines() if line.startswith("stage"))
    assert heading.split()[1:] == ["first", "cold", "later", "cold,", "median", "of", "2"]
    found = json.loads(call(*words, "--json")[0])
    assert [each["start"] for each in (found["cold"], *found["later_cold"])] == ["forked"] * 3


def test_the_event_comes_from_a_file_or_from_standard_input(
    call: Callable[..., tuple[str, str]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "event.json").write_text('{"x": 5}')
    assert json.loads(call("--event-file", str(folder / "event.json"))[0])["y"] == 10.0
    for option in ("--event", "--event-file"):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'"text"')))
        assert json.loads(call(option, "-", name=":names")[0]) == ["factor", "text"]
    assert json.loads(call(name=":names")[0]) == ["factor", {}]


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (("--event", "{"), CallerError, "the event is no JSON"),
        (("--event", "NaN"), CallerError, "the event is no JSON"),
        (("--event", "\udcff"), CallerError, "the event is no JSON"),
        (("--event-file", "/no/file"), CallerError, "the event cannot be read from '/no/file': No such file"),
        (("--timeout", "0"), ConfigError, "--timeout is 0; it must be more than 0 seconds"),
        (("--timeout", "nan"), ConfigError, "--timeout is nan"),
        (("--repeat", "-1"), ConfigError, "--repeat is -1; it must be 0 or more"),
        (("--cold-repeat", "-1"), ConfigError, "--cold-repeat is -1; it must be 0 or more"),
        (("--as", "tensorflow"), CallerError, "as_ is 'tensorflow'"),
    ],
)
def test_words_that_are_wrong_are_told_before_anything_starts(
    words: tuple[str, ...], error: type[Exception], message: str
) -> None:
    options = parse("--runtime-dir", "/no/folder", "call", HANDLERS, "--model", "m", *words)
    with pytest.raises(error, match=message):
        options.run(options)


def test_a_handler_is_a_file_with_a_name_or_alone(folder: Path) -> None:
    assert handler_in(HANDLERS) == handler_in(f"{HANDLERS}:handler") == f"{HANDLERS}:handler"
    assert handler_in(os.path.relpath(HANDLERS) + ":fail") == f"{HANDLERS}:fail"
    for text in ("handler", "x.txt:handler", f"{HANDLERS}:", f"{HANDLERS}:a b", ":handler", ""):
        with pytest.raises(CallerError, match=r"names no handler; write FILE\.py:NAME"):
            handler_in(text)
    with pytest.raises(CallerError, match="there is no file"):
        handler_in(f"{folder}/missing.py")


def test_a_command_that_is_interrupted_ends_with_its_processes(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, checkpoint)
    words = ["--runtime-dir", str(daemon.config.runtime_dir), "call", f"{HANDLERS}:hang", "--model", "m"]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "hangs\n" in iter(process.stderr.readline, "")
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()  # to its end: the processes hold it, too
    process.stderr.close()
    assert (process.wait(60), rest) == (130, "")


def test_an_answer_that_is_nested_too_deeply_to_be_printed_is_told() -> None:
    assert _checked(b"[[1]]") == [[1]]
    with pytest.raises(PredictorError, match="the answer cannot be printed: maximum recursion depth exceeded"):
        _checked(b"[" * 200_000 + b"]" * 200_000)


def test_only_what_was_measured_has_a_column() -> None:
    cold: Any = Invocation(b"1", "forked", 0.25, {"process_s": 0.05, "handler_s": 0.2}, True, "cpu")
    lines = report_lines(Invoked(1.5, (), None, cold, (), None))
    assert lines[:2] == [
        "cold: forked; weights at cpu, already there",
        "its template took 1.50 s, once for all functions",
    ]
    assert [line.split() for line in lines[2:]] == [
        ["stage", "cold"], ["process", "50.00", "ms"], ["handler", "200.00", "ms"], ["total", "250.00", "ms"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"learned": ("c", "a.b", "a")},
            "the first process imported 3 modules, most of a, which the template has learned",
        ),
        (
            {"not_learned": "it has 2 threads"},
            "the template cannot learn what the first process imported: it has 2 thr",
        ),
        ({"unlearned": 1}, "the first process imported 1 module that a template would learn; --cold-repeat N"),
        ({"knew": 3}, "its template took 1.50 s, once for all functions, with 3 modules learned before"),
    ],
)
def test_what_the_first_cold_start_paid_alone_is_told(fields: dict[str, Any], line: str) -> None:
    cold: Any = Invocation(b"1", "forked", 0.25, {}, True, "cpu")
    assert any(each.startswith(line) for each in report_lines(Invoked(1.5, (), None, cold, (), None, **fields)))
