"""The `trims` command: arguments in, exit status out. 0 done, 1 an error of trims, 2 a wrong command line."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError, TrimsError

if TYPE_CHECKING:
    from collections.abc import Sequence


def build_parser() -> argparse.ArgumentParser:
    """All commands, those of plugins included."""
    from trims.cli import daemon_commands, model_commands, tools

    parser = argparse.ArgumentParser(prog="trims", description="A resident model store.")
    parser.add_argument("--version", action="version", version=f"trims {importlib.metadata.version('trims')}")
    parser.add_argument("--runtime-dir", help="folder of the daemon's sockets (default: $TRIMS_RUNTIME_DIR)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    daemon_commands.register(commands)
    model_commands.register(commands)
    tools.register(commands)
    _register_plugins(commands)
    for command in set(commands.choices.values()):  # a command may be there under two names
        if not any("--runtime-dir" in action.option_strings for action in command._actions):
            command.add_argument("--runtime-dir", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        status = int(options.run(options) or 0)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has enough; nothing is left to say to him.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (TrimsError, OSError) as error:
        sys.stderr.write(f"trims: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _register_plugins(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for entry in importlib.metadata.entry_points(group="trims.commands"):
        register = entry.load()
        if not callable(register):
            raise ConfigError(f"the command plugin {entry.name!r} ({entry.value}) is not a function")
        register(commands)


if __name__ == "__main__":
    sys.exit(main())
