"""The `trims` command: every way a command ends is an exit status and, if it failed, one sentence."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

import trims
from trims.cli import main as command
from trims.core.errors import ModelNotFoundError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from trims.cli.main import Commands


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Objects that the entry points of the group `trims.commands` load; empty at first."""
    loaded: list[object] = []

    class Loaded(EntryPoint):
        def load(self) -> object:
            return loaded[int(self.value)]

    def entries(group: str) -> list[EntryPoint]:
        assert group == "trims.commands"
        return [Loaded(f"made-{number}", str(number), group) for number in range(len(loaded))]

    monkeypatch.setattr("importlib.metadata.entry_points", entries)
    return loaded


def runs(run: Callable[[argparse.Namespace], object]) -> Callable[[Commands], None]:
    """Registers the command `made`, which does this."""

    def register(commands: Commands) -> None:
        commands.add_parser("made", help="made by a test").set_defaults(run=run)

    return register


def raises(error: BaseException) -> Callable[[argparse.Namespace], object]:
    def run(options: argparse.Namespace) -> object:
        raise error

    return run


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (1, 1)])
def test_what_a_command_returns_is_the_exit_status(plugin: list[object], returned: object, status: int) -> None:
    plugin.append(runs(lambda options: returned))
    assert command.main(["made"]) == status


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (ModelNotFoundError("no model 'x'; add it"), 1, "trims: no model 'x'; add it\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "trims: [Errno 13] Permission denied: '/x'\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_sentence_and_a_status(
    plugin: list[object], capsys: pytest.CaptureFixture[str], error: BaseException, status: int, told: str
) -> None:
    plugin.append(runs(raises(error)))
    assert command.main(["made"]) == status
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", told)


def test_a_flag_that_a_command_has_not_is_refused_with_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for words, usage in ((["list", "--nope"], "usage: trims list "), (["--nope"], "usage: trims ")):
        with pytest.raises(SystemExit) as ended:
            command.main(words)
        printed = capsys.readouterr().err
        assert (ended.value.code, printed.startswith(usage), "--nope" in printed) == (2, True, True)


def test_a_defect_of_a_command_is_not_hidden(plugin: list[object]) -> None:
    plugin.append(runs(raises(ZeroDivisionError("a bug"))))
    with pytest.raises(ZeroDivisionError):
        command.main(["made"])


def test_a_command_of_a_plugin_is_listed_and_takes_the_runtime_folder(
    plugin: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    plugin.append(runs(lambda options: seen.append(options.runtime_dir)))
    assert "  made       made by a test" in command.build_parser().format_help()
    assert command.main(["--runtime-dir", "/before", "made"]) == 0
    assert command.main(["made", "--runtime-dir", "/after"]) == 0
    assert seen == ["/before", "/after"]


@pytest.mark.parametrize("broken", ["nonsense", raises(ImportError("gone"))])
def test_a_broken_command_plugin_is_named_and_leaves_every_other_command_in_use(
    plugin: list[object], capsys: pytest.CaptureFixture[str], broken: object
) -> None:
    plugin.append(broken)
    plugin.append(runs(lambda options: 0))
    assert command.main(["made"]) == 0
    assert "the command plugin 'made-0' (0) is left out" in capsys.readouterr().err


def test_help_and_version_are_commands_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["help"]) == 0
    assert "  serve " in capsys.readouterr().out
    assert command.main(["help", "status"]) == 0
    assert "usage: trims status" in capsys.readouterr().out
    assert command.main(["help", "statsu"]) == 1
    assert "did you mean status?" in capsys.readouterr().err
    assert command.main(["version"]) == 0
    assert capsys.readouterr().out == f"trims {trims.__version__}\n"
    assert command.main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == trims.__version__


def test_a_misspelt_variable_is_named_by_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIMS_RUNTIMEDIR", "/x")
    assert command.main(["version"]) == 0
    told = capsys.readouterr()
    assert "TRIMS_RUNTIMEDIR has no meaning to trims; did you mean TRIMS_RUNTIME_DIR?" in told.err
    assert told.out.startswith("trims ")
