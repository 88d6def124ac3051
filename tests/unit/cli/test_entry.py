"""Entry of the `trims` command: a program that waits for it imports nothing else, and other commands are as ever."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from programs import TRIMS

import trims
from trims.cli import entry

if TYPE_CHECKING:
    from pathlib import Path

    from trims.daemon.main import Daemon

#: Modules that take longer to import than a program takes to start from a template.
_LONG = {
    "argparse", "asyncio", "dataclasses", "grpc", "hashlib", "inspect", "logging", "pathlib", "rich", "socket",
    "subprocess", "tempfile", "threading", "yaml", "numpy",
}  # fmt: skip


def imported(*words: str) -> set[str]:
    """Return what a `trims` command imports until it ends, or executes another."""
    command = [sys.executable, "-X", "importtime", TRIMS, *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50, stdin=subprocess.DEVNULL)
    lines = (line for line in ended.stderr.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip() for line in lines}


#: Commands of a program whose own imports are few, and one that is no Python program.
COMMANDS = {"a Python program": (sys.executable, "-c", "pass"), "another program": ("true",)}


@pytest.mark.parametrize("what", COMMANDS)
def test_a_program_without_a_daemon_waits_for_few_imports(folder: Path, what: str) -> None:
    found = imported("exec", "--runtime-dir", str(folder), "--why", "--", *COMMANDS[what])
    assert "trims.programs.launch" in found
    assert found & _LONG == set()
    assert not any(
        name.startswith(("trims.cli.main", "trims.control", "trims.daemon", "trims.store")) for name in found
    )


def test_other_commands_import_what_they_need(folder: Path) -> None:
    found = imported("schema")
    assert "argparse" in found
    assert "trims.programs.launch" not in found


def test_other_commands_are_as_ever(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--version"], ["version"]):
        monkeypatch.setattr(sys, "argv", ["trims", *words])
        assert entry.main() == 0
        assert trims.__version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status"), [("", 0), ("exec", 1), ("exec --why", 1), ("exec --forget -- x", 1), ("ps", 1)]
)
def test_what_is_no_start_of_a_program_is_left_to_the_commands(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: str, status: int
) -> None:
    monkeypatch.setenv("TRIMS_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(sys, "argv", ["trims", *words.split()])
    assert entry.main() == status


@pytest.mark.parametrize(("words", "status"), [("exec --help", 0), ("exec --nothing", 2), ("nothing", 2)])
def test_help_and_wrong_command_lines_are_those_of_the_parser(
    monkeypatch: pytest.MonkeyPatch, words: str, status: int
) -> None:
    monkeypatch.setattr(sys, "argv", ["trims", *words.split()])
    with pytest.raises(SystemExit) as caught:
        entry.main()
    assert caught.value.code == status


def test_a_program_that_cannot_be_started_gives_its_status(folder: Path) -> None:
    command = [TRIMS, "exec", "--runtime-dir", str(folder), "--", "no-such-command"]
    assert subprocess.run(command, check=False, capture_output=True, timeout=50).returncode == 127


def test_a_daemon_that_is_asked_for_templates_is_asked_without_them(daemon: Daemon) -> None:
    found = imported("exec", "--runtime-dir", str(daemon.config.runtime_dir), "--", "true")
    assert found & _LONG == set()
