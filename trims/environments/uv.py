"""uv: it resolves requirements to exact versions, makes a virtual environment, and installs a lock.

uv reads its own configuration, so an index or a proxy that works for the user works here.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError, NotSupportedError
from trims.environments.interpreters import plain_environment
from trims.environments.locks import Pin, parse_pins
from trims.process.packages import install_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims.environments.interpreters import Interpreter

_TAIL_LINES = 20


class Uv:
    """A uv that was found.

    Args:
        links: Folders with wheels, besides what uv is configured for.
        offline: Install from these folders only.

    Raises NotSupportedError if there is no uv, or it does not run; ConfigError for a folder that is not there.
    """

    def __init__(self, links: Sequence[Path] = (), *, offline: bool = False) -> None:
        for link in links:
            if not link.is_dir():
                raise ConfigError(f"--find-links {link} is not a folder")
        program = find_uv()
        if program is None:
            raise NotSupportedError(f"there is no uv on the PATH nor beside trims; {install_words('trims[env]')}")
        self._program = program
        self._sources = [word for link in links for word in ("--find-links", str(link.absolute()))]
        self._sources += ["--no-index"] if offline else []
        self.version = self._run(["--version"], "uv does not run", -1).removeprefix("uv ").split()[0]

    def resolve(self, python: Interpreter, requirements: Sequence[str], folder: Path, lock_fd: int) -> list[Pin]:
        """Return exact versions of all that the requirements need.

        Args:
            python: Interpreter that they are for.
            lock_fd: Descriptor of the environments' lock, which uv inherits: the lock lasts as long as uv writes.

        Raises NotSupportedError if there are none.
        """
        file = folder / "requirements.in"
        file.write_text("\n".join([*requirements, ""]), encoding="utf-8")
        words = ["pip", "compile", "--quiet", "--python", str(python.path), "--generate-hashes", "--no-header"]
        words += ["--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--no-python-downloads"]
        failed = f"no versions can be found that fit together for {', '.join(requirements)}"
        return parse_pins(self._run([*words, *self._sources, str(file)], failed, lock_fd), "what uv resolved")

    def make(self, python: Interpreter, venv: Path, lock_fd: int) -> None:
        """Make an empty virtual environment."""
        words = ["venv", "--quiet", "--no-python-downloads", "--python", str(python.path), str(venv)]
        self._run(words, f"no virtual environment can be made of {python.path}", lock_fd)

    def install(self, venv: Path, lock_file: Path, *, hashed: bool, lock_fd: int) -> None:
        """Install a lock into it, and nothing else. Raises NotSupportedError."""
        words = ["pip", "install", "--python", str(venv / "bin" / "python"), "--no-deps"]
        words += ["--require-hashes"] if hashed else []
        self._run([*words, *self._sources, "-r", str(lock_file)], "uv could not install", lock_fd)

    def _run(self, words: Sequence[str], failed: str, lock_fd: int) -> str:
        """Run a program and return its output. Raises NotSupportedError with its last lines, if no terminal shows them.

        Ctrl-C reaches the program, too; in every other case it is ended when this function ends by an error.

        Args:
            failed: What could not be done, for the error.
            lock_fd: Descriptor that the program holds as long as it runs; negative for none.
        """
        shown = sys.stderr.isatty()
        try:
            process = subprocess.Popen(
                [self._program, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if shown else subprocess.PIPE,
                text=True,
                errors="replace",
                env=plain_environment(),
                pass_fds=[lock_fd] if lock_fd >= 0 else [],
            )
        except OSError as error:
            raise NotSupportedError(f"{self._program} cannot be started: {error}") from error
        with process:
            try:
                out, said = process.communicate()
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                raise
        if process.returncode != 0:
            tail = "\n".join((said or "").strip().splitlines()[-_TAIL_LINES:])
            ending = f":\n{tail}" if tail else "; its messages are above" if shown else ""
            raise NotSupportedError(f"{failed} (uv ended with status {process.returncode}){ending}")
        return out


def find_uv() -> str | None:
    """Return uv on the PATH or beside this interpreter; None if there is none."""
    beside = Path(sys.executable).parent / "uv"
    return shutil.which("uv") or (str(beside) if beside.is_file() else None)
