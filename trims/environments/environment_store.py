"""Store of made environments: where they lie, which of them are ready, and which processes use them.

    FOLDER/NAME/venv/                the virtual environment
    FOLDER/NAME/requirements.lock    what is in it
    FOLDER/NAME/environment.json     written last: without it, nothing here counts
    FOLDER/NAME/lock                 flock: shared by each user, exclusive for the maker and the remover
    FOLDER/.gone-*, FOLDER/.work-*   on its way out; for a moment

The kernel drops a lock with the process that holds it, so a process that is killed leaves no lock behind. A folder
without a record, and without a maker that holds its lock, is a leftover, which `sweep` removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.errors import CallerError, ConfigError, InUseError, NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_log = logging.getLogger(__name__)
FOLDER_VARIABLE = "TRIMS_ENVIRONMENTS_DIR"
RECORD = "environment.json"
LOCK_FILE = "requirements.lock"
_HELD = "lock"
_VENV = "venv"
_GONE, _WORK = ".gone-", ".work-"
#: Names of all that is ever put into a folder here. One that holds anything else is not ours to remove.
_KNOWN = {_HELD, _VENV, LOCK_FILE, RECORD, f"{RECORD}.new", "requirements.in", "report.json"}
_LAYOUT = 1
#: Seconds between two looks whether another process has made the environment.
_LOOK_S = 0.1


def default_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return `$TRIMS_ENVIRONMENTS_DIR`, else a folder in the data folder of this user."""
    env = os.environ if environment is None else environment
    if env.get(FOLDER_VARIABLE):
        return Path(env[FOLDER_VARIABLE]).absolute()
    if env.get("XDG_DATA_HOME"):
        return Path(env["XDG_DATA_HOME"]) / "trims" / "environments"
    try:
        home = Path.home()
    except RuntimeError:  # a user without one, as in containers: nothing is there, and nothing is made
        home = Path("/nonexistent")
    return home / ".local" / "share" / "trims" / "environments"


@dataclass(frozen=True, slots=True)
class Made:
    """An environment that is ready.

    Attributes:
        python_version: Version in full: `3.11.7`.
        platform: `linux-x86_64`.
        versions: Package -> version, as locked.
        tool: What made it: `uv 0.5.1`.
        trims: The version of trims that made it.
        nbytes: Bytes on disk when it was made.
        created_s: When, in seconds since 1970.
    """

    name: str
    folder: Path
    python_version: str
    platform: str
    requested: tuple[str, ...]
    versions: Mapping[str, str]
    tool: str
    trims: str
    nbytes: int
    created_s: float

    @property
    def python(self) -> Path:
        """Return the environment's interpreter."""
        return self.folder / _VENV / "bin" / "python"

    @property
    def site(self) -> Path:
        """Return the folder of the environment's packages."""
        minor = ".".join(self.python_version.split(".")[:2])
        return self.folder / _VENV / "lib" / f"python{minor}" / "site-packages"

    @property
    def lock_file(self) -> Path:
        """Return the lock file, which lists the environment's packages, for `trims env create --lock`."""
        return self.folder / LOCK_FILE

    def as_record(self) -> dict[str, object]:
        """Return the JSON values of its record."""
        found = asdict(self)
        del found["name"], found["folder"]
        return {"layout": _LAYOUT, **found}


class EnvironmentStore:
    """The folder of made environments. It need not be there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._warned = False

    def state(self) -> tuple[tuple[str, int], ...]:
        """Return a state that changes whenever an environment becomes ready or goes. Cheap: one look at each."""
        found = []
        for name in self._names():
            with contextlib.suppress(OSError):
                found.append((name, (self.folder / name / RECORD).stat().st_mtime_ns))
        return tuple(sorted(found))

    def all(self) -> list[Made]:
        """Return all that are ready, the newest first. One whose record cannot be read is left out, and logged."""
        found = []
        for name, _ in self.state():
            try:
                found.append(self.read(name))
            except ConfigError as error:
                _log.warning("%s", error)
        return sorted(found, key=lambda made: (made.created_s, made.name), reverse=True)

    def is_ready(self, name: str) -> bool:
        """Return whether the environment has a record."""
        return (self.folder / name / RECORD).exists()

    def unreadable(self) -> dict[str, str]:
        """Return the names of environments whose record cannot be read, and why."""
        found = {}
        for name, _ in self.state():
            try:
                self.read(name)
            except ConfigError as error:
                found[name] = str(error)
        return found

    def read(self, name: str) -> Made:
        """Return one that is ready. Raises ConfigError if its record is not of this trims."""
        folder = self.folder / name
        try:
            raw = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            if raw.pop("layout") != _LAYOUT:
                raise ValueError("another version of trims wrote it")
            made = Made(name=name, folder=folder, **{**raw, "requested": tuple(raw["requested"])})
            if not isinstance(made.versions, dict) or not isinstance(made.created_s, float | int):
                raise TypeError("a field has the wrong type")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"the record of the environment {name} cannot be read ({error}); trims env rm --force {name}"
            ) from error
        return made

    def find(self, name: str) -> str:
        """Return the full name of a ready environment, from the beginning of it.

        Raises CallerError if that is not one.
        """
        names = [each for each, _ in self.state()]
        found = [name] if name in names else [each for each in names if name and each.startswith(name)]
        if len(found) == 1:
            return found[0]
        if found:
            raise CallerError(f"{name!r} begins the names of {len(found)} environments: {', '.join(found)}")
        there = f"there are: {', '.join(names)}" if names else "there are none; trims env create makes one"
        raise CallerError(f"no environment is called {name!r}; {there}")

    # -- making and removing ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def claimed(self, name: str) -> Iterator[int | None]:
        """Claim the name for the block: this process alone makes the environment. Yields the lock's descriptor.

        Waits for another process that makes it; None once it is ready. Raises OSError if the folder cannot be written.
        """
        while True:
            fd = None if self.is_ready(name) else self._claim(name)
            if fd is not None or self.is_ready(name):
                break  # its users hold the lock once it is ready
            time.sleep(_LOOK_S)
        try:
            yield fd
        finally:
            if fd is not None:
                os.close(fd)

    def _claim(self, name: str) -> int | None:
        """Return the lock's descriptor; None if another process has it.

        A sweep may take all of it between any two lines.
        """
        folder = self.folder / name
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError:
            if folder.exists() and not folder.is_dir():
                raise
            return None  # it was there, and is not any more
        try:
            fd = os.open(folder / _HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            return None
        if _try_lock(fd) and _is_at(fd, folder / _HELD) and not self.is_ready(name):
            return fd
        os.close(fd)
        return None

    @contextlib.contextmanager
    def workplace(self) -> Iterator[tuple[Path, int]]:
        """Yield a folder for the block, and the descriptor of its lock; removed afterwards, or by the next sweep."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        folder = Path(tempfile.mkdtemp(prefix=_WORK, dir=self.folder))
        fd = os.open(folder / _HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield folder, fd
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(fd)

    def settle(self, made: Made) -> None:
        """Write the record: the environment is ready."""
        text = json.dumps(made.as_record(), indent=1, sort_keys=True)
        before = made.folder / f"{RECORD}.new"
        with before.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        before.rename(made.folder / RECORD)

    def remove(self, name: str, *, force: bool = False) -> None:
        """Remove one that is ready. Raises InUseError if a process uses it and it is not forced.

        It is renamed first: a process that looks for it finds all of it, or nothing.
        """
        with _opened(self.folder / name / _HELD) as fd:
            if not _try_lock(fd) and not force:
                users = _format_pids(_users((self.folder / name / _HELD).resolve()))
                raise InUseError(f"the environment {name} is in use by {users}; end it, or use --force")
            self._take_away(name)

    def sweep(self) -> list[str]:
        """Remove what killed makers and removers have left; returns the names.

        Folders that hold anything else than what is made here are left alone.
        """
        found = []
        for name in self._names(hidden=True):
            with contextlib.suppress(OSError):  # it went, or is no folder
                if self._is_leftover(name) and self._sweep_away(name):
                    found.append(name)
        return found

    def _is_leftover(self, name: str) -> bool:
        hidden = name.startswith((_GONE, _WORK))
        inside = set(os.listdir(self.folder / name))
        return inside <= _KNOWN and (hidden or (_HELD in inside and RECORD not in inside))

    def _sweep_away(self, name: str) -> bool:
        with _opened(self.folder / name / _HELD) as fd:
            if not _try_lock(fd) or not self._is_leftover(name):
                return False  # it is being made, or became ready meanwhile
            self._take_away(name)
            return True

    def _take_away(self, name: str) -> None:
        gone = self.folder / name
        if not name.startswith((_GONE, _WORK)):
            gone = Path(tempfile.mkdtemp(prefix=_GONE, dir=self.folder))
            (self.folder / name).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _names(self, *, hidden: bool = False) -> list[str]:
        try:
            return [name for name in os.listdir(self.folder) if hidden or not name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning("environments in %s cannot be seen: %s", self.folder, error)
            return []


def hold(python: str | os.PathLike[str] | None) -> int | None:
    """Use a made environment: a descriptor that keeps it from being removed until it is closed.

    Args:
        python: An interpreter, of any environment.

    Returns:
        None if trims did not make its environment.

    Raises:
        NotSupportedError: The environment is being removed.
    """
    if python is None:
        return None
    folder = Path(python).parent.parent.parent
    if Path(python) != folder / _VENV / "bin" / "python":
        return None
    try:
        fd = os.open(folder / _HELD, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if (folder / RECORD).exists():
            return fd
    except BlockingIOError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    raise NotSupportedError(f"the environment {folder.name} is being removed; ask again, and another one is picked")


def _try_lock(fd: int) -> bool:
    """Lock the file for this process alone. Return False if another process has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    """Return whether the open file is still the one at the path: its folder may have been removed during the wait."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _users(path: Path) -> list[int]:
    """Return other processes that have the file open, as far as this user may see."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if int(pid) != os.getpid() and any(
                os.readlink(f"/proc/{pid}/fd/{fd}") == str(path) for fd in os.listdir(f"/proc/{pid}/fd")
            ):
                found.append(int(pid))
    return sorted(found)


def _format_pids(pids: list[int]) -> str:
    """Return a text such as `process 12 (trims serve)`, for each process."""
    return ", ".join(f"process {pid}{_called(pid)}" for pid in pids) or "a process"


def _called(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    known = [word for word in words if word in ("serve", "endpoint", "run", "convert", "env")]
    return f" (trims {known[0]})" if known else ""
