"""Examination of transparent loaders: what they would do in an environment (`trims doctor --loaders`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from trims.cli.finding import Finding
from trims.core.errors import CallerError
from trims.process.python import run_ours
from trims.programs.launch import our_packages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_OFF = "TRIMS_TRANSPARENT"
_PATIENCE_S = 60.0


def examine_loaders(python: str | None) -> Iterator[Finding]:
    """Yield what the loaders do in an interpreter's environment, framework by framework.

    Args:
        python: Path of the interpreter; None for this one.

    Raises:
        CallerError: The interpreter cannot be run, or is too old.
    """
    if python == "":
        raise CallerError("--python is empty; name an interpreter")
    found = _survey(python or sys.executable)
    yield Finding("ok", f"Python {found['python']} at {python or sys.executable}")
    if os.environ.get(_OFF) == "0":
        yield Finding("note", f"{_OFF} is 0: all frameworks load alone", f"unset {_OFF}")
    for each in found["adapters"]:
        yield _finding(each)


def _survey(python: str) -> dict[str, Any]:
    command = run_ours("trims_client.transparent.survey", packages=our_packages(), python=python)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1] if done.stdout else "")
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"exit status {error.returncode}"])[-1]
        raise CallerError(f"{python} cannot have the loaders, which need Python 3.10 or newer: {last}") from error
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise CallerError(f"{python} cannot be asked for its frameworks: {error}") from error
    return found


def _finding(each: dict[str, Any]) -> Finding:
    what, installed = f"{each['loader']}: {each['framework']} {each['version']}", each["version"]
    if each["problem"]:
        return Finding("bad", f"{what}: the adapter cannot be imported: {each['problem']}", "mend or uninstall it")
    if not installed:
        return Finding("note", f"{each['loader']}: {each['framework']} is not installed here")
    proven = each["proven"]
    if proven and not any(f"{installed}.".startswith(f"{release}.") for release in proven):
        why = f"loads alone: the adapter was proven with {', '.join(proven)}"
        return Finding("note", f"{what} {why}", f"install {each['framework']} {proven[-1]} to share what it loads")
    return Finding("ok", f"{what} loads through the store")
