"""A warm open and a warm request pass few calls and files, however long ago the last one was."""

from __future__ import annotations

import importlib

import pytest
from repository import ROOT

#: How often a client looks for its answer before it is there, and what the daemon's clock does meanwhile.
BY_CHANCE = {
    *(("client", name) for name in ("_read", "receive", "left", "_timeval")),
    *(("daemon", name) for name in ("next_due_s", "next_s", "_sleep", "<genexpr>")),
}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("request_path")


def test_a_warm_open_and_a_warm_request_pass_few_calls_and_files(tool: object) -> None:
    opened, looked, answered = tool.paths()  # type: ignore[attr-defined]
    assert {call.part for call in opened} == {"client", "daemon"}
    assert {"endpoint", "predictor"} <= {call.part for call in answered}
    assert "Describe" not in {call.function for call in answered}, "the daemon is not asked again"
    answered = [call for call in answered if call.part != "daemon"]  # its clock ticks meanwhile
    opened, looked = (
        [each for each in calls if (each.part, each.function) not in BY_CHANCE] for calls in (opened, looked)
    )
    # One file more since the queues for room have a class of their own.
    for calls, most_calls, most_files in ((opened, 280, 36), (looked, 345, 47), (answered, 430, 57)):
        lines = "\n".join(f"{call.part} {call.file}:{call.function}" for call in calls)
        assert len(calls) <= most_calls, lines
        assert len(tool.files(calls)) <= most_files, lines  # type: ignore[attr-defined]
