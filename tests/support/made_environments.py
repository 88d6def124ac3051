"""Environments as `trims env create` leaves them, made by hand in an instant; and wheels to make real ones of."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import sys
import sysconfig
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING

from trims.environments.environment_store import EnvironmentStore, Made
from trims.environments.locks import Pin, locked

if TYPE_CHECKING:
    from collections.abc import Sequence

PLATFORM = sysconfig.get_platform()
MINOR = ".".join(map(str, sys.version_info[:2]))
#: The interpreter under all virtual environments.
BASE = Path(getattr(sys, "_base_executable", "") or sys.executable)


def put(folder: Path, created_s: float = 1.0, name: str = "", **versions: str) -> Made:
    """A ready environment with the metadata of these packages and a `python` that runs."""
    lock = locked([Pin(each, version) for each, version in versions.items()], MINOR, PLATFORM, list(versions))
    home = folder / (name or lock.name())
    made = Made(home.name, home, platform.python_version(), PLATFORM, lock.requested, dict(lock.versions), "hand 1",
                "0.1.0", 4096, created_s)  # fmt: skip
    made.python.parent.mkdir(parents=True)
    made.python.symlink_to(BASE)
    (home / "venv" / "pyvenv.cfg").write_text(f"home = {BASE.parent}\ninclude-system-site-packages = false\n")
    made.site.mkdir(parents=True)
    for each, version in made.versions.items():
        install(made, each, version)
    (home / "lock").touch()
    made.lock_file.write_text(lock.text())
    EnvironmentStore(folder).settle(made)
    return made


def install(made: Made, name: str, version: str, requires: Sequence[str] = (), code: str | None = None) -> None:
    """Put a package into it that says its version."""
    info = made.site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(_metadata(name, version, requires))
    (made.site / f"{name}.py").write_text(f"__version__ = {version!r}\n" if code is None else code)


def write_wheel(folder: Path, name: str, version: str, requires: Sequence[str] = (), code: str | None = None) -> Path:
    """A wheel with one module, which says its version."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": (f"__version__ = {version!r}\n" if code is None else code).encode(),
        f"{info}/METADATA": _metadata(name, version, requires).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return _zipped(folder / f"{name}-{version}-py3-none-any.whl", info, files)


def write_wheel_of(folder: Path, name: str) -> Path:
    """A wheel of what is installed here, so that an environment gets it without an index."""
    found = importlib.metadata.distribution(name)
    info = f"{name}-{found.version}.dist-info"
    files = {}
    for file in found.files or ():
        inside = str(file)
        if not inside.startswith("..") and not inside.endswith((".pyc", "RECORD", "INSTALLER", "REQUESTED")):
            files[inside] = Path(str(file.locate())).read_bytes()
    tag = next(line for line in files[f"{info}/WHEEL"].decode().splitlines() if line.startswith("Tag: "))
    return _zipped(folder / f"{name}-{found.version}-{tag.removeprefix('Tag: ')}.whl", info, files)


def _metadata(name: str, version: str, requires: Sequence[str]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {each}" for each in requires), ""])


def _zipped(path: Path, info: str, files: dict[str, bytes]) -> Path:
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            wheel.writestr(name, data)
    return path


def _digest(data: bytes) -> str:
    return urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
