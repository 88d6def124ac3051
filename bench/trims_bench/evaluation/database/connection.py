"""Connections to a database of evaluations: opened, brought to the newest form, and errors that name the remedy."""

from __future__ import annotations

import importlib.util
import logging
import os
import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.control import admin
from trims.core.errors import (
    CapacityError,
    ConfigError,
    DaemonAwayError,
    InUseError,
    LostPeerError,
    NotSupportedError,
    PermissionDeniedError,
    TrimsError,
)
from trims.process.packages import install_words
from trims.registry.database import LOCKED_S, damaged, explain
from trims.trace import spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from sqlalchemy import Connection, Engine
    from sqlalchemy.exc import DBAPIError

    Result = TypeVar("Result")

#: Names the database, if no option does.
VARIABLE = "TRIMS_EVALUATIONS"
_MIGRATIONS = Path(__file__).parent / "migrations"
#: Number that processes which bring one PostgreSQL database to the newest form take turns by.
_UPGRADE_LOCK = 0x7472696D73
_CONNECT_S, _STATEMENT_S = 10, 60
#: Seconds between two tries to reach a database that went away.
_AGAIN_S = 0.25
#: Words of a server that refuses a connection only for a while.
_NOT_NOW = ("database system is", "connection slots", "too many", "terminating connection")
#: Beginnings of PostgreSQL's error codes, and what they mean for a user.
_ERRORS: tuple[tuple[tuple[str, ...], type[TrimsError], str, str], ...] = (
    (("08", "57P"), LostPeerError, "does not answer", "see that PostgreSQL runs there"),
    (("28", "3D000"), ConfigError, "refuses the connection", "check user, password and name of the database"),
    (("42501", "25006"), PermissionDeniedError, "cannot be written", "its user needs the right to"),
    (("53",), CapacityError, "has no room", "free some there"),
    (("55P03", "57014", "40P01"), InUseError, "is locked by another process", "try again"),
)
_REMEDY = "evaluations are then kept in a new one"


def check_installed() -> None:
    """Raise NotSupportedError without the package that evaluations are kept with. Imports nothing."""
    try:
        found = importlib.util.find_spec("sqlalchemy")
    except ValueError:
        found = None
    if found is None:
        raise NotSupportedError(f"evaluations are kept with SQLAlchemy; {install_words('trims[eval]')}")


class Connector:
    """Opens connections.

    Args:
        url: SQLAlchemy's form of the address: `sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/NAME`.
        patience_s: Seconds for which a PostgreSQL server that went away is waited for.

    Raises:
        ConfigError: The URL is none of these; the database is damaged, or of a newer version of trims.
        NotSupportedError: A package that it needs is not installed.
        LostPeerError: PostgreSQL does not answer.
        TrimsError: What else may be wrong with a file or a server.
    """

    def __init__(self, url: str, patience_s: float = 30.0) -> None:
        self._patience_s = patience_s
        self._engine, self._path = _engine(url)
        #: Without its password.
        self.name = str(self._path or self._engine.url.render_as_string(hide_password=True))
        try:
            self._within(self._upgraded, write=False)
        except BaseException:
            self.close()
            raise

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """Run work in a transaction that writes nothing."""
        return self._patiently(work, write=False)

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """Run work in a transaction; after a lost connection once more, so it must be idempotent."""
        return self._patiently(work, write=True)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._engine.dispose()

    def _patiently(self, work: Callable[[Connection], Result], *, write: bool) -> Result:
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return self._within(work, write=write)
            except LostPeerError:
                if time.monotonic() + _AGAIN_S > until:
                    raise
                time.sleep(_AGAIN_S)

    def _within(self, work: Callable[[Connection], Result], *, write: bool) -> Result:
        with self._explained(), self._engine.execution_options(trims_write=write).begin() as connection:
            return work(connection)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            raise self._error(error) from error

    def _error(self, error: DBAPIError) -> Exception:
        cause = error.orig
        if isinstance(cause, sqlite3.Error) and self._path is not None:
            return explain(cause, self._path, remedy=_REMEDY)
        return _of_postgresql(cause, self.name) or error

    def _upgraded(self, connection: Connection) -> None:
        """Check the form of the database; bring an older one to the newest. Nothing is written to one that is new."""
        newest = _newest()
        if self._revision(connection) == newest:
            return
        connection.rollback()
        with self._engine.execution_options(trims_write=True).begin() as writing:
            if self._path is None:
                writing.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})")
            if self._revision(writing) != newest:  # no other process was faster
                _migrate(writing)

    def _revision(self, connection: Connection) -> str | None:
        from sqlalchemy import inspect

        tables = inspect(connection).get_table_names()
        noted = "alembic_version" in tables
        found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() if noted else None
        if found is not None and found not in _revisions():
            raise ConfigError(
                f"{self.name} is of a newer version of trims (its form is {found}, this version knows up to "
                f"{_newest()}); install that version, or name another database with --database"
            )
        if found is None and "evaluations" in tables:
            what = "it has tables named as ours, and no version"
            if self._path is not None:
                raise damaged(self._path, what, _REMEDY)
            raise ConfigError(f"{self.name}: {what}; name another database with --database")
        return found


def database_url(named: str, state_dir: Path) -> str:
    """Return the URL of the database of evaluations: the one that is named, else the variable's, else a file's."""
    return named or os.environ.get(VARIABLE, "") or f"sqlite:///{state_dir / 'evaluations.db'}"


def find_database(named: str, runtime_dir: str | None) -> str:
    """Return the URL of the database of evaluations as `database_url`, also where no daemon runs."""
    if named or os.environ.get(VARIABLE):
        return database_url(named, Path())
    try:
        with admin(runtime_dir) as daemon:
            return database_url("", Path(daemon.status().health.state_dir))
    except DaemonAwayError:
        return database_url("", Path(spans.default_folder()).parent)


def _engine(url: str) -> tuple[Engine, Path | None]:
    try:
        from sqlalchemy import create_engine
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError as error:
        raise NotSupportedError(f"evaluations are kept with SQLAlchemy; {install_words('trims[eval]')}") from error
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except ArgumentError as error:
        raise ConfigError(
            f"the database {url.rsplit('@', maxsplit=1)[-1]!r:.120} is no URL such as sqlite:////FILE"
        ) from error
    if backend == "sqlite" and parsed.database and parsed.database != ":memory:":
        return _sqlite(Path(parsed.database))
    if backend != "postgresql":
        raise ConfigError(
            f"the database {parsed.render_as_string(hide_password=True)!r:.120} is none of sqlite:////FILE and "
            "postgresql://USER@HOST/NAME"
        )
    try:
        engine = create_engine(
            parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True,
            connect_args={
                "connect_timeout": _CONNECT_S, "application_name": "trims",
                "options": f"-c lock_timeout={LOCKED_S:.0f}s -c statement_timeout={_STATEMENT_S}s",
            },
        )  # fmt: skip
    except ImportError as error:
        raise NotSupportedError(f"PostgreSQL needs its driver; {install_words('trims[postgresql]')}") from error
    return engine, None


def _sqlite(path: Path) -> tuple[Engine, Path]:
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {error.strerror}: {path.parent}; choose another folder") from error
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool, connect_args={"timeout": LOCKED_S})

    def connected(connection: sqlite3.Connection, record: object) -> None:
        del record
        connection.isolation_level = None  # SQLAlchemy begins its transactions below, as the driver would too late
        connection.execute("PRAGMA foreign_keys=ON")

    def begun(connection: Connection) -> None:
        write = connection.get_execution_options().get("trims_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
    return engine, path


def _of_postgresql(cause: Any, name: str) -> TrimsError | None:
    """Return the error that one of PostgreSQL means for a user; None for a bug of ours."""
    code, text = getattr(cause, "sqlstate", None) or "", f"{' '.join(str(cause).split()):.300}"
    if not code:  # the driver knows none of a connection that was refused: the server's own word begins with FATAL
        if type(cause).__name__ not in ("OperationalError", "ConnectionTimeout"):
            return None
        code = "28" if "FATAL:" in text and not any(each in text for each in _NOT_NOW) else "08"
    for prefixes, kind, what, remedy in _ERRORS:
        if code.startswith(prefixes):
            return kind(f"{name} {what} ({text}); {remedy}")
    return None


def _newest() -> str:
    return _revisions()[0]


def _revisions() -> list[str]:
    """Return the forms that a database may have, the newest first: without alembic, which takes long to import."""
    return sorted((each.name.partition("_")[0] for each in (_MIGRATIONS / "versions").glob("*_*.py")), reverse=True)


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)  # what it does is no news for a user
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
