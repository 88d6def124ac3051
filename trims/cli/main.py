"""The `trims` command: arguments in, exit status out. 0 done, 1 an error of trims, 2 a wrong command line."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import sys
import textwrap
from typing import TYPE_CHECKING

import trims
from trims.core.errors import CallerError, TrimsError
from trims.process.inherited import take_defaults, use_utf8

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

#: A command that needs all others, and those that need none and are registered behind those of other packages.
_COMPLETION, _ALONE = "completion", ("schema", "version")
#: Variables from which clients know where a daemon is.
_EVERYDAY = ("TRIMS_RUNTIME_DIR", "TRIMS_STATE_DIR", "TRIMS_ENVIRONMENTS_DIR")
#: Columns of what a command does, in the help.
_HELP_COLUMNS = 66


class _GroupedHelp(argparse.RawDescriptionHelpFormatter):
    """Leaves the list of commands to the epilog, which has them in groups."""

    def _iter_indented_subactions(self, action: argparse.Action) -> Generator[argparse.Action, None, None]:
        if not isinstance(action, argparse._SubParsersAction):
            yield from super()._iter_indented_subactions(action)


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands.

    Args:
        command: The command that is going to be parsed. If it is one of trims's own that needs no other, the commands
            of other packages are left out: looking for them takes longer than most commands.
    """
    from trims.cli import (
        add_command,
        alias_command,
        daemon_commands,
        env_commands,
        exec_command,
        manifest_commands,
        model_commands,
        tools,
        transfer_commands,
    )

    parser = argparse.ArgumentParser(prog="trims", description="A resident model store.", formatter_class=_GroupedHelp)
    parser.set_defaults(parser=parser)  # for `trims completion`
    parser.add_argument("--version", action="version", version=f"trims {trims.__version__}")
    parser.add_argument("--runtime-dir", help="folder of the daemon's sockets (default: $TRIMS_RUNTIME_DIR)")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", help="see below; trims COMMAND --help")

    def register_plugins(commands: Commands) -> None:
        if command == _COMPLETION or command not in {*commands.choices, *_ALONE}:
            _register_plugins(commands)

    parser.epilog = "\n\n".join(
        [
            _group(
                "models",
                commands,
                add_command.register,
                model_commands.register,
                alias_command.register,
                transfer_commands.register,
            ),
            _group("the daemon", commands, daemon_commands.register),
            _group(
                "tools",
                commands,
                exec_command.register,
                env_commands.register,
                manifest_commands.register,
                tools.register,
                register_plugins,
                _register_help,
            ),
        ]
    )
    for each in set(commands.choices.values()):  # a command may be there under two names
        if not any("--runtime-dir" in action.option_strings for action in each._actions):
            each.add_argument("--runtime-dir", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def _name_unknown_variables() -> None:
    """Print which `TRIMS_` variables have no meaning: the command would ask another daemon than was meant.

    The daemon's settings, which know all names, are imported only if there is one beside those of every day.
    """
    if any(name.startswith("TRIMS_") and name not in _EVERYDAY for name in os.environ):
        from trims.daemon.config import unknown_variables

        for sentence in unknown_variables():
            sys.stderr.write(f"trims: {sentence}\n")


def _command_in(words: Sequence[str]) -> str | None:
    """Return the command of a command line; None if it has none."""
    given = iter(words)
    for word in given:
        if word == "--runtime-dir":
            next(given, None)
        elif not word.startswith("-"):
            return word
    return None


def _parser_of(parser: argparse.ArgumentParser, command: str | None) -> argparse.ArgumentParser:
    """Return the parser of a command; that of all commands for one that is none."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and command in action.choices:
            found: argparse.ArgumentParser = action.choices[command]
            return found
    return parser


def _group(title: str, commands: Commands, *registers: Callable[[Commands], None]) -> str:
    """Register commands; returns their part of the help, in lines of at most 80 columns."""
    before = len(commands._choices_actions)
    for register in registers:
        register(commands)
    listed = [(action.dest, action.help or "") for action in commands._choices_actions[before:]]
    lines = [f"{title}:"]
    for name, what in listed:
        first, *more = textwrap.wrap(what, _HELP_COLUMNS)
        lines += [f"  {name:10} {first}", *(f"{'':13}{line}" for line in more)]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    _open_standard_files()
    if arguments is None:
        use_utf8()
        take_defaults()
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if words == ["--version"]:
            sys.stdout.write(f"trims {trims.__version__}\n")
            return 0
        _name_unknown_variables()
        command = _command_in(words)
        parser = build_parser(command)
        options, unknown = parser.parse_known_args(words)
        if unknown:  # with the usage of the command, which has its flags
            _parser_of(parser, command).error(f"unrecognized arguments: {' '.join(unknown)}")
        if options.command is None:
            parser.print_help()
            return 0
        status = int(options.run(options) or 0)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed it: there is nothing left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (TrimsError, OSError) as error:
        from trims.cli.output import plain

        sys.stderr.write(f"trims: {plain(str(error))}\n")
        if isinstance(error, OSError) and error.errno in (errno.EPERM, errno.ENOSYS):
            _name_refused_calls()
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _name_refused_calls() -> None:
    """Print which system calls a sandbox refuses, behind an error number that may come from one of them."""
    from trims.process.system_calls import REMEDY, refused_calls

    for each in refused_calls():
        sys.stderr.write(f"trims: {each}: {REMEDY}\n")


def _open_standard_files() -> None:
    """Open what the caller has closed of standard input, output and error, as files that hold nothing.

    Else the next socket or file would get the number, and what is printed would go there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _register_help(commands: Commands) -> None:
    text = "print the help of a command, or the list of all"
    helps = commands.add_parser("help", help=text, description=text)
    helps.add_argument("topic", nargs="?", metavar="COMMAND", help="default: all commands")
    helps.add_argument("--all", action="store_true", help="all commands with all options, as Markdown")
    helps.set_defaults(run=_help)
    text = "print the JSON schema of manifests, for editors"
    commands.add_parser("schema", help=text, description=text).set_defaults(run=_schema)
    text = "print the version of trims"
    version = commands.add_parser("version", help=text, description=text)
    version.add_argument("--json", action="store_true", help="print JSON")
    version.set_defaults(run=_version)


def _help(options: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = options.parser
    if options.all:
        from trims.cli.options_table import markdown

        sys.stdout.write(markdown(parser))
        return 0
    if options.topic is not None:
        commands: Commands = next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
        found = commands.choices.get(options.topic)
        if found is None:
            near = difflib.get_close_matches(options.topic, commands.choices, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; `trims help` lists all"
            raise CallerError(f"there is no command {options.topic!r}{hint}")
        parser = found
    parser.print_help()
    return 0


def _schema(options: argparse.Namespace) -> int:
    del options
    from trims.manifests.schema import text

    sys.stdout.write(text())
    return 0


def _version(options: argparse.Namespace) -> int:
    from trims.cli.output import say_done

    python = ".".join(map(str, sys.version_info[:3]))
    say_done(options, f"trims {trims.__version__}", version=trims.__version__, python=python)
    return 0


def _register_plugins(commands: Commands) -> None:
    """Add the commands of other packages. One that fails is left out with a word: all others must work."""
    import importlib.metadata

    for entry in importlib.metadata.entry_points(group="trims.commands"):
        before = list(commands.choices)
        try:
            entry.load()(commands)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in may fail in any way
            for name in set(commands.choices).difference(before):
                del commands.choices[name]
            why = f"{type(error).__name__}: {error}; repair or uninstall its package"
            sys.stderr.write(f"trims: the command plugin {entry.name!r} ({entry.value}) is left out: {why}\n")


if __name__ == "__main__":
    sys.exit(main())
