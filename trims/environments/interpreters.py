"""Finding a Python to make an environment of, and asking it what it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trims.core.errors import NotSupportedError
from trims.process.oneshot import run

_VERSION = re.compile(r"3\.\d+\Z")
_ASK = (
    "import sys, sysconfig, platform, json; print(json.dumps({'python': sys.executable, "
    "'version': platform.python_version(), 'platform': sysconfig.get_platform(), "
    "'implementation': platform.python_implementation(), 'base': getattr(sys, '_base_executable', '')}))"
)
_ANSWER_S = 60.0
#: Variables that would lead an interpreter, pip or uv to another environment than the one that is meant.
_MISLEADING = (
    "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "__PYVENV_LAUNCHER__",
    "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_PYTHON", "UV_PYTHON", "UV_PROJECT_ENVIRONMENT", "UV_SYSTEM_PYTHON",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One Python.

    Attributes:
        platform: `linux-x86_64`.
    """

    path: Path
    version: str
    platform: str

    @property
    def minor(self) -> str:
        """`3.11`."""
        return ".".join(self.version.split(".")[:2])


def parse_interpreters(value: Mapping[str, str] | str) -> dict[str, Path]:
    """`mxnet=/path/to/python,other=/path`, or a mapping. Raises ValueError if an interpreter is not a file."""
    parts: list[tuple[str, str]] = []
    if isinstance(value, Mapping):
        parts += value.items()
    else:
        parts += [(name, path) for name, _, path in (part.partition("=") for part in str(value).split(",") if part)]
    found = {str(name): Path(path).absolute() for name, path in parts if path}
    if len(found) < len(parts):
        raise ValueError("write framework=/path/to/python, with commas between several")
    for name, path in found.items():
        if not path.is_file():
            raise ValueError(f"the interpreter of {name}, {path}, is not a file")
    return found


def plain_environment() -> dict[str, str]:
    """Variables for programs that work on another environment than this one."""
    return {name: value for name, value in os.environ.items() if name not in _MISLEADING}


def find_interpreter(wanted: str = "", uv: str | None = None) -> Interpreter:
    """Return the Python that is meant.

    Args:
        wanted: A version such as `3.10`, a path, or empty for the Python that this process runs on.
        uv: Asked for versions that are not on the PATH.

    Raises:
        NotSupportedError: There is none, or it is not one that trims runs on.
    """
    if not wanted:
        return _ask(Path(getattr(sys, "_base_executable", "") or sys.executable))
    if not _VERSION.match(wanted):
        return _ask(Path(wanted).absolute())
    if wanted == ".".join(map(str, sys.version_info[:2])):
        return find_interpreter()
    why = f"there is no Python {wanted} on the PATH"
    for found in filter(None, (shutil.which(f"python{wanted}"), _asked_of_uv(wanted, uv))):
        try:
            return _ask(Path(found), wanted)
        except NotSupportedError as error:  # such as a stand-in of pyenv for a version that is not installed
            why = str(error)
    raise NotSupportedError(
        f"{why}; install Python {wanted} (with uv: uv python install {wanted}), or write --python /path/to/python"
    )


def _asked_of_uv(wanted: str, uv: str | None) -> str:
    if uv is None:
        return ""
    command = [uv, "python", "find", "--no-python-downloads", wanted]
    done = run(command, seconds=_ANSWER_S, env=plain_environment())
    return done.out.strip() if done.status == 0 else ""


def _ask(path: Path, wanted: str = "") -> Interpreter:
    try:
        done = run([path, "-I", "-c", _ASK], seconds=_ANSWER_S, env=plain_environment())
        told = json.loads(done.out)
    except ValueError as error:
        words = " ".join(done.err.split())[:300] or "it said nothing that can be understood"
        raise NotSupportedError(f"{path} is no Python that runs: {words} (status {done.status})") from error
    except OSError as error:
        raise NotSupportedError(f"{path} is no Python that runs: {error}") from error
    found = Interpreter(path, str(told["version"]), str(told["platform"]))
    if told["implementation"] != "CPython" or _numbers(found.version) < (3, 10):
        raise NotSupportedError(f"{path} is {told['implementation']} {found.version}; trims needs CPython from 3.10 on")
    if wanted and found.minor != wanted:
        raise NotSupportedError(f"{path} is Python {found.version}, not {wanted}")
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
