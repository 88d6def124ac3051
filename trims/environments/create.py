"""Making an environment: resolve, lock, and install in place, unless the same one is there already.

1. The requirements become exact versions, in a folder that lives only for that; a lock file needs no such step.
2. Their digest gives the name. From here on one process alone works in the folder of that name.
3. If it is ready, it is the answer. Otherwise it is made there, because a virtual environment cannot be moved.
4. The record is written last.

A kill at any moment leaves a folder without a record, or one with a hidden name; the next command removes it.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError, NotSupportedError
from trims.environments.checking import glance
from trims.environments.environment_store import LOCK_FILE, Made
from trims.environments.interpreters import find_interpreter
from trims.environments.locks import locked, parse_lock
from trims.environments.requirements import with_ours
from trims.environments.uv import Uv, find_uv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.environments.environment_store import EnvironmentStore
    from trims.environments.interpreters import Interpreter
    from trims.environments.locks import Lock


@dataclass(frozen=True, slots=True)
class Request:
    """Description of the environment to make.

    Attributes:
        requirements: Requirements as a person wrote them. Empty with a lock.
        lock: A lock file.
        python: A version, a path, or empty: that of the lock, else of this process.
        links: Folders with wheels.
        offline: Whether nothing but these folders is asked.
        trims: The version of trims that asks, for the record.
    """

    requirements: tuple[str, ...] = ()
    lock: Path | None = None
    python: str = ""
    links: tuple[Path, ...] = ()
    offline: bool = False
    trims: str = ""


def make(
    env_store: EnvironmentStore, request: Request, report: Callable[[str], None] = lambda _: None
) -> tuple[Made, bool]:
    """Make an environment, or find it.

    Args:
        tell: Called with a line for people at each step that takes long.

    Returns:
        The environment, and whether it was made now.

    Raises:
        ConfigError: The lock file is none, or is for another Python or platform.
        NotSupportedError: No Python or uv is there, or the packages cannot be had; the message has their words.
        OSError: The folder cannot be written, or the disk is full.
    """
    env_store.sweep()
    uv = Uv(request.links, offline=request.offline)
    if request.lock is not None:
        lock = _read_lock(request.lock)
        python = find_interpreter(request.python or lock.python, find_uv())
        _check_fits(lock, python, request.lock)
    else:
        python = find_interpreter(request.python, find_uv())
        lock = _resolve(env_store, uv, python, request.requirements, report)
    name = lock.name()
    try:
        with env_store.claimed(name) as lock_fd:
            if lock_fd is None:
                return _sound(env_store.read(name)), False
            report(f"installing {len(lock.pins)} packages into {env_store.folder / name}")
            made = replace(_build(env_store.folder / name, uv, python, lock, lock_fd), trims=request.trims)
            env_store.settle(made)
            return made, True
    except BaseException:
        env_store.sweep()
        raise


def _sound(made: Made) -> Made:
    """Return the environment, if it still is as it was made. Raises NotSupportedError."""
    faults = glance(made)
    if faults:
        raise NotSupportedError(f"the environment {made.name} is there, but {faults[0].what}; {faults[0].remedy}")
    return made


def _read_lock(path: Path) -> Lock:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"no lock can be read from {path}: {error}") from error
    lock = parse_lock(text, str(path))
    if not lock.pins:
        raise ConfigError(f"{path} names no package")
    return lock


def _check_fits(lock: Lock, python: Interpreter, where: Path) -> None:
    if (lock.python, lock.platform) != (python.minor, python.platform):
        raise ConfigError(
            f"{where} is for Python {lock.python} on {lock.platform}, and {python.path} is Python {python.minor} on "
            f"{python.platform}; make another lock there: trims env create {' '.join(lock.requested)}".rstrip()
        )


def _resolve(
    env_store: EnvironmentStore,
    uv: Uv,
    python: Interpreter,
    requested: tuple[str, ...],
    report: Callable[[str], None],
) -> Lock:
    requirements = with_ours(requested)
    report(f"resolving {', '.join(requirements)} for Python {python.version} with uv")
    with env_store.workplace() as (folder, lock_fd):
        pins = uv.resolve(python, requirements, folder, lock_fd)
    return locked(pins, python.minor, python.platform, requested)


def _build(folder: Path, uv: Uv, python: Interpreter, lock: Lock, lock_fd: int) -> Made:
    venv, lock_file = folder / "venv", folder / LOCK_FILE
    shutil.rmtree(venv, ignore_errors=True)  # of a maker that was killed since the sweep
    lock_file.write_text(lock.text(), encoding="utf-8")
    uv.make(python, venv, lock_fd)
    uv.install(venv, lock_file, hashed=all(pin.hashes for pin in lock.pins), lock_fd=lock_fd)
    made = Made(
        name=folder.name,
        folder=folder,
        python_version=python.version,
        platform=python.platform,
        requested=lock.requested,
        versions=dict(lock.versions),
        tool=f"uv {uv.version}",
        trims="",
        nbytes=bytes_under(folder),
        created_s=time.time(),
    )
    if not made.site.is_dir():
        raise NotSupportedError(f"uv made a virtual environment without {made.site}")
    return made


def bytes_under(folder: Path) -> int:
    """Return the bytes on disk of all that lies in it.

    A file under several names counts once; links are not followed.
    """
    seen: set[tuple[int, int]] = set()
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(place, name))
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
    return total
