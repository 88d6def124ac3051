"""A PostgreSQL server of the tests' own, in a folder that goes away with it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDERS = (*sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True), *os.environ.get("PATH", "").split(":"))
#: The server refuses to run as root.
_USER = "nobody"
_READY_S = 30.0


def why_not() -> str:
    """Return why no server can be started here; empty if one can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed"
    return "" if _tool("initdb") else "PostgreSQL is not installed (apt-get install postgresql)"


def _tool(name: str) -> str | None:
    return next((found for folder in _FOLDERS if (found := shutil.which(name, path=folder))), None)


class Server:
    """A server that answers on a Unix socket in its folder, and can be ended and started again.

    Attributes:
        url: Of its database.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"postgresql://trims@/postgres?host={folder}"
        user = pwd.getpwnam(_USER) if os.geteuid() == 0 else None
        self._as = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        self._run("initdb", "-D", str(folder / "data"), "-U", "trims", "-A", "trust", "--no-sync", "-E", "UTF8")
        self._process: subprocess.Popen[bytes] | None = None

    def _run(self, name: str, *arguments: str) -> None:
        tool = _tool(name)
        assert tool is not None
        subprocess.run([tool, *arguments], check=True, capture_output=True, timeout=60, cwd=self.folder, **self._as)  # type: ignore[call-overload]

    def start(self) -> None:
        """Start it, and return when it answers."""
        tool = _tool("postgres")
        assert tool is not None
        command = [tool, "-D", str(self.folder / "data"), "-k", str(self.folder), "-h", "", "-c", "fsync=off"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._as)  # type: ignore[call-overload]
        import psycopg

        until = time.monotonic() + _READY_S
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
            except psycopg.OperationalError:
                assert time.monotonic() < until, (self.folder / "log").read_text()
                time.sleep(0.05)
            else:
                return

    def end(self) -> None:
        """End it at once, as a machine that loses its power; what was committed is kept. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(3)
            process.wait(30)

    def execute(self, statement: str) -> None:
        """Execute a statement."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]


@contextmanager
def postgresql() -> Iterator[Server]:
    """Serve a database."""
    folder = Path(tempfile.mkdtemp(prefix="trims-pg-", dir="/tmp"))  # short: a socket's path has 107 bytes
    server = Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.end()
        shutil.rmtree(folder, ignore_errors=True)
