"""Command lines of Python programs: the interpreter, its flags, and the program, as CPython itself reads them."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAMES = ("python", "python3")
#: Flags without a value that a template is started with, too.
_PLAIN = frozenset("bBdEIOPRsSqu")
_LONG_VALUED = ("--check-hash-based-pycs",)
#: Values of `-X` that do not report on imports or on the interpreter's own start and end.
_QUIET_X = (
    "dev", "faulthandler", "frozen_modules", "int_max_str_digits", "no_debug_ranges", "pycache_prefix", "utf8",
    "warn_default_encoding", "cpu_count", "context_aware_warnings", "thread_inherit_context",
)  # fmt: skip
#: Bytes of a file that are read to find its interpreter, and those of a line that the kernel reads.
_HEAD_BYTES, _LINE_BYTES = 512, 256
_MOST_SOURCE_BYTES = 1 << 20


class NotAProgram(Exception):  # noqa: N818 - no error: the command is executed as it is
    """The command is not a Python program that a template can start; the message says why."""


class Program:
    """A Python program, and what starts it.

    Attributes:
        interpreter: Path of it, absolute, with its symbolic links: a virtual environment is found by it.
        argv: The command line as the interpreter is given it.
        flags: Flags of the interpreter, each by itself.
        arguments: Words from the first on that is no flag: a script, or `-m MODULE`, `-c CODE` or `-`.
        comm: Name of the process, as the kernel sets it.
        folder: What `sys.path` begins with; empty for an archive.
    """

    def __init__(self, interpreter: str, argv: Sequence[str], comm: str) -> None:
        self.interpreter = interpreter
        self.argv = list(argv)
        self.comm = comm
        self.flags, self.arguments = _parsed(self.argv)
        self.folder = self._checked_folder()

    @property
    def own(self) -> str:
        """Return the name of the module that is run; empty text for what is no module."""
        return self.arguments[1] if self.arguments[0] == "-m" else ""

    @property
    def identity(self) -> tuple[str, str]:
        """Return what distinguishes programs of one interpreter: how they are given, and which they are."""
        first = self.arguments[0]
        if first in ("-m", "-c"):
            return first, self.arguments[1]
        return ("-", "") if first == "-" else ("script", os.path.realpath(first))

    def _checked_folder(self) -> str:
        first = self.arguments[0]
        if first in ("-m", "-c", "-"):
            if first == "-" and os.isatty(0):
                raise NotAProgram("it is an interactive session")
            return os.getcwd()
        try:
            if not stat.S_ISREG(os.stat(first).st_mode):
                raise NotAProgram(f"{first} is no file: folders and archives are run as ever")
            with open(first, "rb") as file:
                head = file.read(_MOST_SOURCE_BYTES)
            if head.startswith(b"PK\3\4"):
                raise NotAProgram(f"{first} is an archive")
            if b"\0" in head and not first.endswith(".pyc"):
                raise NotAProgram(f"{first} is no source text")
        except OSError as error:
            raise NotAProgram(f"{first}: {error.strerror}") from error
        return os.path.dirname(os.path.realpath(first))


def program_of(command: Sequence[str], environment: Mapping[str, str]) -> Program:
    """Return the Python program that a command runs.

    Args:
        command: Name or path of an executable, and its arguments.
        environment: Variables of the command; PATH is looked through.

    Raises:
        NotAProgram: The command is another kind of program, or one that only its interpreter can run.
    """
    path = _found(command[0], environment)
    if path is None:
        raise NotAProgram("no such command")
    if _is_interpreter(path):
        return Program(path, command, os.path.basename(path))
    line, direct = _interpreter_line(path)
    if not line:
        raise NotAProgram(f"{command[0]} is no Python program")
    interpreter = None if direct and not line[0].startswith("/") else _found(line[0], environment)
    if interpreter is None or not _is_interpreter(interpreter):
        raise NotAProgram(f"{command[0]} is a program of {line[0]}, which is no Python")
    script = command[0] if "/" in command[0] else path  # as the kernel is given it
    return Program(interpreter, [*line, script, *command[1:]], os.path.basename(path if direct else interpreter))


def _found(name: str, environment: Mapping[str, str]) -> str | None:
    if "/" in name:
        return os.path.abspath(name) if os.access(name, os.X_OK) and not os.path.isdir(name) else None
    found = _which(name, environment.get("PATH", os.defpath))
    return None if found is None else os.path.abspath(found)


def _which(name: str, path: str) -> str | None:
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder or os.curdir, name)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    return None


def _is_interpreter(path: str) -> bool:
    """Return whether a path is that of a Python: by its name, and because it is no script (such as a shim)."""
    name = os.path.basename(path)
    if name not in _NAMES and not name.startswith("python3."):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _interpreter_line(path: str) -> tuple[list[str], bool]:
    """Return the words that start a script, none for what is no script, and whether the kernel itself takes them.

    The others are taken by `env`, or by a shell.
    """
    try:
        with open(path, "rb") as file:
            lines = file.read(_HEAD_BYTES).split(b"\n")
    except OSError:
        return [], True
    if not lines[0].startswith(b"#!") or len(lines[0]) >= _LINE_BYTES or len(lines) == 1:
        return [], True
    interpreter, _, argument = os.fsdecode(lines[0][2:]).strip(" \t").replace("\t", " ").partition(" ")
    argument = argument.strip(" ")
    if interpreter == "/bin/sh" and not argument:
        return _installers_line(os.fsdecode(lines[1])), False
    if os.path.basename(interpreter) == "env":
        words = argument.split(" ")
        if words[0] == "-S":
            return argument.split()[1:], False
        return ([] if len(words) > 1 or argument.startswith("-") or "=" in argument else words), False
    return [interpreter, *([argument] if argument else [])], True


def _installers_line(line: str) -> list[str]:
    """Return the interpreter of a script whose path is too long for a first line: pip and uv write `'''exec' PATH`."""
    if not line.startswith("'''exec' ") or not line.endswith(' "$0" "$@"'):
        return []
    path = line[len("'''exec' ") : -len(' "$0" "$@"')]
    return [path.strip("\"'")]


def _parsed(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flags of an interpreter, and the rest. Raises NotAProgram."""
    flags: list[str] = []
    index = 1
    while index < len(argv):
        word = argv[index]
        if word == "--":
            if argv[index + 1 : index + 2] and argv[index + 1].startswith("-") and argv[index + 1] != "-":
                raise NotAProgram(f"the program is a file named {argv[index + 1]}")
            index += 1
            break
        if word == "-" or not word.startswith("-"):
            break
        if word.startswith("--"):
            if word not in _LONG_VALUED or index + 1 == len(argv):
                raise NotAProgram(f"the interpreter is given {word}")
            flags += [word, argv[index + 1]]
            index += 2
            continue
        ended, index = _letters(argv, index, flags)
        if ended:
            return flags, [ended[0], ended[1], *argv[index:]]
    if index >= len(argv):
        raise NotAProgram("it is an interactive session")
    return flags, list(argv[index:])


def _is_relative_prefix(value: str) -> bool:
    name, _, folder = value.partition("=")
    return name == "pycache_prefix" and bool(folder) and not folder.startswith("/")


def _letters(argv: Sequence[str], index: int, flags: list[str]) -> tuple[tuple[str, str] | None, int]:
    """Take one word of flags in. Return the program if the word names it, and the index of the next word."""
    word = argv[index]
    for place, letter in enumerate(word[1:], 2):
        if letter in _PLAIN:
            flags.append(f"-{letter}")
            continue
        if letter not in "cmWX":
            raise NotAProgram(f"the interpreter is given -{letter}")
        value, index = word[place:], index + 1
        if not value:
            if index == len(argv):
                raise NotAProgram(f"-{letter} lacks its value")
            value, index = argv[index], index + 1
        if letter in "cm":
            return (f"-{letter}", value), index
        if letter == "X" and (value.partition("=")[0] not in _QUIET_X or _is_relative_prefix(value)):
            raise NotAProgram(f"the interpreter is given -X {value}")
        flags += [f"-{letter}", value]
        return None, index
    return None, index + 1
