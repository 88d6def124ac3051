"""Programs under `trims exec`, beside the same programs alone; and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.cli.exec_command import list_templates

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The `trims` command as users have it.
TRIMS = str(Path(sys.executable).with_name("trims"))
DEADLINE_S = 60.0
FORKED, OBSERVED, AS_EVER = "forked from a template", "this run is observed", "started as ever"


class Environment:
    """Virtual environment of this interpreter, with modules of its own."""

    def __init__(self, folder: Path) -> None:
        version = sysconfig.get_python_version()
        self.python = folder / "bin" / "python"
        self.packages = folder / "lib" / f"python{version}" / "site-packages"
        self.python.parent.mkdir(parents=True)
        self.packages.mkdir(parents=True)
        base = os.path.realpath(sys.executable)
        self.python.symlink_to(base)
        (folder / "pyvenv.cfg").write_text(f"home = {os.path.dirname(base)}\nversion = {version}\n")

    def install(self, **modules: str) -> None:
        for name, code in modules.items():
            (self.packages / f"{name}.py").write_text(code)


class Programs:
    """Starts programs in a folder, with the daemon of a runtime folder.

    Args:
        folder: Working folder.
        runtime_dir: The daemon's.
    """

    def __init__(self, folder: Path, runtime_dir: Path) -> None:
        self.folder = folder
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("TRIMS_", "PYTEST_", "COV_"))},
            "TRIMS_RUNTIME_DIR": str(runtime_dir),
        }

    def write(self, name: str, code: str) -> str:
        """Write a file of a program. Return its name."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        return name

    def command(self, words: Sequence[str], *options: str) -> list[str]:
        """Return the command that starts a program by `trims exec`, however small; `python` is this interpreter."""
        return [TRIMS, "exec", "--least-saving", "0", *options, "--", *_named(words)]

    def alone(self, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a program by itself."""
        return self._run(_named(words), **how)

    def run(self, *words: str, options: Sequence[str] = (), **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a program by `trims exec`."""
        return self._run(self.command(words, *options), **how)

    def way(self, *words: str, **how: Any) -> str:
        """Run a program by `trims exec --why`. Return which way was taken, in its words."""
        ended = self.run(*words, options=("--why",), **how)
        return next(line for line in ended.stderr.splitlines() if line.startswith("trims exec: "))

    def start(self, *words: str, options: Sequence[str] = (), **how: Any) -> subprocess.Popen[str]:
        """Start a program by `trims exec`."""
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": self.folder, **how}
        how.setdefault("env", self.env)
        return subprocess.Popen(self.command(words, *options), **how)

    def _run(self, command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
        how = {"capture_output": True, "text": True, "cwd": self.folder, "timeout": DEADLINE_S, **how}
        if "input" not in how:
            how.setdefault("stdin", subprocess.DEVNULL)
        how["env"] = {**self.env, **how.get("env", {})}
        return subprocess.run(command, check=False, **how)

    def templates(self) -> list[dict[str, Any]]:
        """Return what the daemon reports of templates."""
        return list_templates(self.env["TRIMS_RUNTIME_DIR"])

    def await_templates(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many templates are ready and none is being made."""
        until_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < until_s:
            found = self.templates()
            if len(found) == count and all(each["state"] == "ready" for each in found):
                return found
            time.sleep(0.01)
        raise AssertionError(f"there are not {count} templates: {self.templates()}")

    def learn(self, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a program for the first time, and wait for its template."""
        before = len([each for each in self.templates() if each["state"] == "ready"])
        ended = self.run(*words, **how)
        self.await_templates(before + 1)
        return ended

    def processes(self) -> dict[int, str]:
        """Return the command lines of all processes that have this daemon's folder in their environment."""
        mark = f"TRIMS_RUNTIME_DIR={self.env['TRIMS_RUNTIME_DIR']}\0".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if mark in (entry / "environ").read_bytes():
                        found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
                except OSError:
                    continue
        return found

    def end(self) -> None:
        """End all templates, and wait until nothing is left of them."""
        subprocess.run([TRIMS, "exec", "--forget"], env=self.env, check=True, capture_output=True, timeout=DEADLINE_S)
        self.await_no_process()

    def await_no_process(self) -> None:
        """Wait until nothing is left of programs, templates and hosts."""
        until_s = time.monotonic() + DEADLINE_S
        while (left := self.processes()) and time.monotonic() < until_s:
            time.sleep(0.05)
        assert not left


def _named(words: Sequence[str]) -> list[str]:
    return [sys.executable if words[0] == "python" else words[0], *words[1:]]
