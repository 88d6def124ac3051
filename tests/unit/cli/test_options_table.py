"""The page of all commands and options, as it stands in the documents."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trims.cli.main import build_parser, main
from trims.cli.options_table import markdown

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]


def test_the_documents_have_every_command_and_option() -> None:
    written = (ROOT / "docs" / "options.md").read_text()
    assert written == markdown(build_parser()), "write it again: trims help --all > docs/options.md"


def test_commands_of_commands_are_listed_and_what_is_suppressed_is_not() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    env = commands.add_parser("env", description="make | list")
    make = env.add_subparsers().add_parser("make")
    make.add_argument("name", help="of it")
    make.add_argument("--tool", choices=("a", "b"), help="which; 100 %%")
    make.add_argument("--quiet", action="store_true", help="no lines")
    make.add_argument("--secret", help=argparse.SUPPRESS)
    page = markdown(parser)
    assert "## trims env\n\nmake \\| list\n" in page
    rows = page[page.index("## trims env make") :].splitlines()[4:]
    assert rows == ["| `name` | of it |", "| `--tool {a,b}` | which; 100 % |", "| `--quiet` | no lines |"]


def test_help_prints_the_page_and_schema_the_schema_of_manifests(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "--all"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "options.md").read_text()
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == (ROOT / "manifests" / "schema.json").read_text()
