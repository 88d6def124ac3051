"""Checks what `--hide` names before the endpoint starts: that it is there, and that predictors start without it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError
from trims.process.child import exit_words
from trims.process.oneshot import run
from trims_predictors.children.launcher import probe_command, shown
from trims_predictors.sandbox.sandbox import NAMESPACES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trims_predictors.sandbox.sandbox import Isolation

#: A namespace has its own, which must stay.
_MADE = ("/", "/dev", "/proc")
_PROBE_S = 60.0


def check_hidden(paths: Sequence[Path], isolation: Isolation, runtime_dir: str) -> None:
    """Raise ConfigError if one of `--hide` is not there, or if predictors could not start without it.

    Args:
        paths: What the user names. A path that appears later would be seen by running predictors.
        isolation: The level, with everything that is hidden.
        runtime_dir: Folder of the daemon's sockets.
    """
    for path in paths:
        if not path.exists():
            raise ConfigError(
                f"--hide {path}: there is no such file or folder, so nothing would be hidden; create it before the "
                "endpoint starts, or leave the flag out"
            )
    if isolation.level != NAMESPACES:
        return
    for path in paths:
        if os.path.realpath(path) in _MADE:
            raise ConfigError(f"--hide {path}: predictors cannot run without it; name the folders inside that matter")
    if paths and _why_not(isolation, runtime_dir):
        for path in paths:
            why = _why_not(replace(isolation, hidden=(str(path),)), runtime_dir)
            if why:
                raise ConfigError(
                    f"--hide {path}: predictors cannot start without it ({why}); name the folders inside that matter"
                )
        raise ConfigError(f"--hide {', '.join(map(str, paths))}: predictors cannot start without all of these together")


def _why_not(isolation: Isolation, runtime_dir: str) -> str:
    """Return why a predictor's program does not start at this level; empty if it does."""
    wrapped = isolation.wrapped(probe_command(), runtime_dir, shown())
    try:
        done = run(wrapped.command, seconds=_PROBE_S, fds=wrapped.fds, **wrapped.how)
    except OSError as error:
        return str(error)
    finally:
        wrapped.close()
    return "" if done.status == 0 else done.last_words(1, exit_words(done.status))[:200]
