"""Commands that the endpoint runs: their output, their errors, and their end."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from trims_bench.evaluation.served import errands
from trims_bench.evaluation.served.errands import Errand, Errands

from trims.core.errors import BusyError, CallerError, CapacityError, DeadlineError, InternalError

if TYPE_CHECKING:
    from pathlib import Path


def ask(*words: str) -> str:
    return asyncio.run(Errands().ask(*words))


def test_the_output_of_a_command_is_returned() -> None:
    assert ask("version").startswith("trims ")


def test_an_error_of_trims_keeps_its_class(tmp_path: Path) -> None:
    with pytest.raises(CallerError):
        ask("report", "none", f"--database=sqlite:///{tmp_path / 'e.db'}")


def test_a_command_line_that_is_none_is_a_bug() -> None:
    with pytest.raises(InternalError):
        ask("report", "--moon")


def test_options_of_all_commands_stand_behind_their_name(tmp_path: Path) -> None:
    assert asyncio.run(Errands([f"--database=sqlite:///{tmp_path / 'e.db'}"]).ask("report", "--json")) == "[]\n"


def test_a_command_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "_PATIENCE_S", 0.0)
    with pytest.raises(DeadlineError):
        ask("version")


def test_too_many_that_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "_MOST_WAITING", 1)

    async def both() -> list[object]:
        given = Errands()
        return await asyncio.gather(given.ask("version"), given.ask("version"), return_exceptions=True)

    assert [type(each) for each in asyncio.run(both())] == [str, BusyError]


def test_a_process_that_cannot_be_started_is_a_lack_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands.sys, "executable", "/no/such/python")  # type: ignore[attr-defined]
    with pytest.raises(CapacityError):
        ask("version")
    with pytest.raises(CapacityError):
        Errand(["version"])


def test_lines_are_handed_on_and_an_error_at_the_end_is_raised(tmp_path: Path) -> None:
    async def read(*words: str) -> list[str]:
        taken: list[str] = []
        errand = Errand(words)
        try:
            await errand.lines(taken.append)
        finally:
            errand.end()
            errand.end()
        return taken

    assert asyncio.run(read("version")) == [ask("version")]
    with pytest.raises(CallerError):
        asyncio.run(read("report", "none", f"--database=sqlite:///{tmp_path / 'e.db'}"))


def test_a_command_that_is_ended_leaves_nothing() -> None:
    async def end() -> int:
        errand = Errand(["completion", "bash"])
        pid = errand._process.pid
        errand.end()
        with pytest.raises(InternalError):
            await errand.lines(lambda line: None)
        return pid

    with pytest.raises(ProcessLookupError):
        os.kill(asyncio.run(end()), 0)
