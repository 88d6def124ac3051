"""All commands and their options as one page of Markdown: docs/options.md, and `trims help --all`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trims.daemon.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = """# Commands and options

Every command of `trims` with its arguments and options. `trims help COMMAND` prints one of them, and `trims help --all`
prints this page. All take `--runtime-dir`, the folder of the daemon's sockets (default: $TRIMS_RUNTIME_DIR). Options of
`trims serve` are the [settings](operations.md#settings): `--cpu-capacity-bytes 8GiB` for `cpu_capacity_bytes`.
"""


def markdown(parser: argparse.ArgumentParser) -> str:
    """Return the page for a parser with commands."""
    return "\n".join([_HEAD, *_commands(parser, "trims", {})])


def _commands(parser: argparse.ArgumentParser, name: str, tables: dict[tuple[str, ...], str]) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            seen: set[int] = set()
            for word, command in action.choices.items():
                if id(command) not in seen:
                    seen.add(id(command))
                    yield from _command(command, f"{name} {word}", tables)


def _command(command: argparse.ArgumentParser, name: str, tables: dict[tuple[str, ...], str]) -> Iterator[str]:
    yield f"## {name}\n"
    if command.description:
        yield f"{_plain(command.description)}\n"
    left_out = Config.__dataclass_fields__ if name == "trims serve" else ()
    rows = tuple(row for action in command._actions if action.dest not in left_out and (row := _row(action)))
    if (same := tables.setdefault(rows, name)) != name and len(rows) > 1:
        yield f"Arguments and options are those of `{same}`.\n"
    elif rows:
        yield "| | |"
        yield "| --- | --- |"
        yield from rows
        yield ""
    yield from _commands(command, name, tables)


def _row(action: argparse.Action) -> str:
    left_out = isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))
    if left_out or action.help == argparse.SUPPRESS or "--runtime-dir" in action.option_strings:
        return ""
    name = ", ".join(action.option_strings)
    if action.nargs != 0:
        choices = "" if action.choices is None else "{" + ",".join(map(str, action.choices)) + "}"
        value = action.metavar or choices or "…"
        name = f"{name} {value}".strip() if action.option_strings else str(action.metavar or action.dest)
    return f"| `{name}` | {_plain(action.help or '')} |"


def _plain(text: str) -> str:
    return " ".join(text.replace("%%", "%").split()).replace("|", "\\|")
