"""The file that keeps what templates have learned to import, so that the next endpoint's templates begin with it.

A file that is damaged, of another version, or full of what no endpoint wrote counts as empty: losing it costs the first
cold start of each framework some time, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from typing import TYPE_CHECKING, Any

from trims_predictors.children.launcher import Environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_log = logging.getLogger(__name__)
_VERSION = 1
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_MOST_BYTES = 4 << 20
#: Modules of one environment, at most: more than any model imports.
_MOST_MODULES = 4096


def read_learned(path: Path) -> dict[Environment, list[str]]:
    """Return the modules of each environment whose interpreter is still there; nothing if the file cannot be used."""
    return {environment: modules for environment, modules, _ in _rows(path)}


def read_used(path: Path) -> dict[Environment, float]:
    """Return when each environment was used last, in seconds since 1970; nothing if the file cannot be used."""
    return {environment: used_s for environment, _, used_s in _rows(path)}


def _rows(path: Path) -> list[tuple[Environment, list[str], float]]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
        if found["version"] != _VERSION:
            return []
        rows = [_row(each) for each in found["environments"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        _log.warning("%s is not used: what templates have learned is learned again (%s)", path, error)
        return []
    return [row for row in rows if not row[0].python or os.path.isfile(row[0].python)]


def _row(raw: Any) -> tuple[Environment, list[str], float]:
    texts = [raw["framework"], raw["python"], raw["tenant"], *raw["modules"]]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{raw!r:.80} is no environment")
    modules = [name for name in raw["modules"] if _MODULE.match(name)]
    used_s = float(raw.get("used_s", 0.0))
    return Environment(raw["framework"], raw["python"], raw["tenant"]), modules[:_MOST_MODULES], used_s


def write_learned(
    path: Path, learned: Mapping[Environment, Sequence[str]], used: Mapping[Environment, float] | None = None
) -> None:
    """Replace the file in one step. Failures are logged: an endpoint without it answers as well.

    Args:
        path: Of the file.
        learned: Modules of each environment.
        used: When each was used last, in seconds since 1970.
    """
    times = used or {}
    rows = [
        {
            "framework": each.framework, "python": each.python, "tenant": each.tenant,
            "modules": list(learned.get(each, ())), "used_s": times.get(each, 0.0),
        }
        for each in {**learned, **times}
    ]  # fmt: skip
    new = path.with_name(f"{path.name}.{os.getpid()}.new")  # of this process: commands may run beside each other
    try:
        new.write_text(json.dumps({"version": _VERSION, "environments": rows}), encoding="utf-8")
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        _log.warning("what templates have learned is not kept: %s: %s", path, error.strerror)
