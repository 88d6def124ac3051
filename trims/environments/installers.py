"""uv and pip behind one interface: resolve requirements to exact versions, make a virtual environment, install a lock.

Both read their own configuration, so an index or a proxy that works for the user works here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from trims.core.errors import ConfigError, NotSupportedError
from trims.environments.interpreters import plain_environment
from trims.environments.locks import Pin, parse_pins
from trims.process.python import run_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims.environments.interpreters import Interpreter

TOOLS = ("auto", "uv", "pip")
#: Oldest pip that installs into another environment and reports what it would install.
_LEAST_PIP = Version("22.3")
_TAIL_LINES = 20


class Installer(ABC):
    """Interface of uv and pip; see the module.

    Args:
        links: Folders with wheels, besides what the tool is configured for.
        offline: Install from these folders only.
        lock_fd: Inherited by each program that is started, so that the lock lasts as long as it writes.
    """

    name: str
    version: str

    def __init__(self, links: Sequence[Path], *, offline: bool) -> None:
        self.sources = [word for link in links for word in ("--find-links", str(link.absolute()))]
        self.sources += ["--no-index"] if offline else []

    @abstractmethod
    def resolve(self, python: Interpreter, requirements: Sequence[str], folder: Path, lock_fd: int) -> list[Pin]:
        """Return exact versions of all that the requirements need.

        Args:
            python: Interpreter that they are for.
            folder: Scratch folder for the installer's files.
            lock_fd: Descriptor of the environments' lock, which the installer inherits.

        Raises NotSupportedError if there are none.
        """

    @abstractmethod
    def make(self, python: Interpreter, venv: Path, lock_fd: int) -> None:
        """Make an empty virtual environment."""

    @abstractmethod
    def install(self, venv: Path, lock_file: Path, *, hashed: bool, lock_fd: int) -> None:
        """Install a lock into it, and nothing else. Raises NotSupportedError."""


class _Uv(Installer):
    """uv."""

    name = "uv"

    def __init__(self, program: str, links: Sequence[Path] = (), *, offline: bool = False) -> None:
        super().__init__(links, offline=offline)
        self.program = program
        self.version = _run([program, "--version"], "uv does not run", -1).removeprefix("uv ").split()[0]

    def resolve(self, python: Interpreter, requirements: Sequence[str], folder: Path, lock_fd: int) -> list[Pin]:
        file = folder / "requirements.in"
        file.write_text("\n".join([*requirements, ""]), encoding="utf-8")
        words = ["pip", "compile", "--quiet", "--python", str(python.path), "--generate-hashes", "--no-header"]
        words += ["--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--no-python-downloads"]
        text = _run([self.program, *words, *self.sources, str(file)], _unresolved(requirements), lock_fd)
        return parse_pins(text, "what uv resolved")

    def make(self, python: Interpreter, venv: Path, lock_fd: int) -> None:
        words = ["venv", "--quiet", "--no-python-downloads", "--python", str(python.path), str(venv)]
        _run([self.program, *words], f"no virtual environment can be made of {python.path}", lock_fd)

    def install(self, venv: Path, lock_file: Path, *, hashed: bool, lock_fd: int) -> None:
        words = ["pip", "install", "--python", str(venv / "bin" / "python"), "--no-deps"]
        words += ["--require-hashes"] if hashed else []
        _run([self.program, *words, *self.sources, "-r", str(lock_file)], "uv could not install", lock_fd)


class _Pip(Installer):
    """The pip of this environment, working on another one. Raises NotSupportedError if it is missing or too old."""

    name = "pip"

    def __init__(self, links: Sequence[Path] = (), *, offline: bool = False) -> None:
        super().__init__(links, offline=offline)
        try:
            self.version = importlib.metadata.version("pip")
        except importlib.metadata.PackageNotFoundError:
            self.version = "0"
        if Version(self.version) < _LEAST_PIP:
            there = "no pip" if self.version == "0" else f"pip {self.version}"
            raise NotSupportedError(
                f"there is no uv on the PATH, and {there} beside {sys.executable}; install one of them: "
                f"{sys.executable} -m ensurepip --upgrade, or uv, or pip {_LEAST_PIP} or later"
            )

    def resolve(self, python: Interpreter, requirements: Sequence[str], folder: Path, lock_fd: int) -> list[Pin]:
        venv, report = folder / "venv", folder / "report.json"
        self.make(python, venv, lock_fd)
        words = ["install", "--quiet", "--dry-run", "--report", str(report), *self.sources, *requirements]
        self._pip(venv, words, _unresolved(requirements), lock_fd)
        told = json.loads(report.read_text(encoding="utf-8"))
        return [_reported(each) for each in told["install"]]

    def make(self, python: Interpreter, venv: Path, lock_fd: int) -> None:
        words = [str(python.path), "-I", "-m", "venv", "--without-pip", str(venv)]
        _run(words, f"no virtual environment can be made of {python.path}", lock_fd)

    def install(self, venv: Path, lock_file: Path, *, hashed: bool, lock_fd: int) -> None:
        words = ["install", "--no-deps", *(["--require-hashes"] if hashed else []), *self.sources]
        self._pip(venv, [*words, "-r", str(lock_file)], "pip could not install", lock_fd)

    @staticmethod
    def _pip(venv: Path, words: Sequence[str], failed: str, lock_fd: int) -> None:
        begin = run_module("pip", "--disable-pip-version-check", "--no-input")
        _run([*begin, "--python", str(venv / "bin" / "python"), *words], failed, lock_fd, "pip")


def find_uv() -> str | None:
    """Return uv on the PATH or beside this interpreter; None if there is none."""
    beside = Path(sys.executable).parent / "uv"
    return shutil.which("uv") or (str(beside) if beside.is_file() else None)


def choose(tool: str = "auto", links: Sequence[Path] = (), *, offline: bool = False) -> Installer:
    """Choose uv if it is there, else pip; or the one named. Raises NotSupportedError, or ConfigError for a folder."""
    for link in links:
        if not link.is_dir():
            raise ConfigError(f"--find-links {link} is not a folder")
    program = find_uv()
    if tool == "uv" and program is None:
        raise NotSupportedError("there is no uv on the PATH; install it, or leave --tool uv out")
    if program is not None and tool != "pip":
        return _Uv(program, links, offline=offline)
    return _Pip(links, offline=offline)


def _reported(item: dict[str, dict[str, object]]) -> Pin:
    metadata, archive = item["metadata"], item["download_info"].get("archive_info")
    hashes = archive.get("hashes", {}) if isinstance(archive, dict) else {}
    found = (f"sha256:{hashes['sha256']}",) if "sha256" in hashes else ()
    return Pin(str(metadata["name"]), str(metadata["version"]), found)


def _unresolved(requirements: Sequence[str]) -> str:
    return f"no versions can be found that fit together for {', '.join(requirements)}"


def _run(command: Sequence[str], failed: str, lock_fd: int, program: str = "") -> str:
    """Run a program and return its output. Raises NotSupportedError with its last lines, if no terminal shows them.

    Ctrl-C reaches the program, too; in every other case it is ended when this function ends by an error.

    Args:
        command: Program and arguments.
        failed: What could not be done, for the error.
        lock_fd: Descriptor that the program holds as long as it runs; negative for none.
        program: Name of the program for the error, where the command does not begin with it.
    """
    shown = sys.stderr.isatty()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if shown else subprocess.PIPE,
            text=True,
            errors="replace",
            env=plain_environment(),
            pass_fds=[lock_fd] if lock_fd >= 0 else [],
        )
    except OSError as error:
        raise NotSupportedError(f"{command[0]} cannot be started: {error}") from error
    with process:
        try:
            out, said = process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            raise
    if process.returncode != 0:
        tail = "\n".join((said or "").strip().splitlines()[-_TAIL_LINES:])
        words = f":\n{tail}" if tail else "; its messages are above" if shown else ""
        raise NotSupportedError(
            f"{failed} ({program or Path(command[0]).name} ended with status {process.returncode}){words}"
        )
    return out
