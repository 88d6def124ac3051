"""Bad days of the database: each has its error, and nothing that was kept is lost."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event
from trims_bench.evaluation.database import connection
from trims_bench.evaluation.database.connection import check_installed
from trims_bench.evaluation.database.evaluations import Evaluations
from trims_bench.evaluation.records import Order, Sample, Taken

from trims.core.errors import (
    CapacityError,
    ConfigError,
    InUseError,
    LostPeerError,
    NotSupportedError,
    PermissionDeniedError,
    TrimsError,
)

if TYPE_CHECKING:
    from pathlib import Path

    from postgresql import Server

ORDER = Order("1", "m", "key", ("cpu",), ("fresh",), 2)


def taken(number: int) -> Taken:
    return Taken(Sample("cpu", "fresh", number, 0.5, {"open": 0.5}, (0.1,), "d", "a" * 32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "evaluations.db"
    with Evaluations(f"sqlite:///{made}") as kept:
        kept.begin(ORDER, 2)
        kept.add("1", taken(0))
    return made


def raised(path: Path, *statements: str) -> type[TrimsError]:
    with closing(sqlite3.connect(path)) as found:
        for statement in statements:
            found.execute(statement)
        found.commit()
    with pytest.raises(TrimsError) as error:
        Evaluations(f"sqlite:///{path}")
    return error.type


@pytest.mark.parametrize(
    "url",
    ["", "evaluations.db", "sqlite://", "sqlite:///:memory:", "mysql://h/x", "postgresql+nothing:/", "http://x/y"],
)
def test_an_address_that_names_no_database_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Evaluations(url)


def test_passwords_are_in_no_error() -> None:
    for url in ("mysql://u:secret@h/x", "postgresql://u:secret@127.0.0.1:1/x"):
        with pytest.raises(TrimsError) as error:
            Evaluations(url, patience_s=0)
        assert "secret" not in str(error.value)


def test_a_database_of_a_newer_version_is_refused_and_stays_as_it_is(path: Path) -> None:
    assert raised(path, "UPDATE alembic_version SET version_num = '9999'") is ConfigError
    with closing(sqlite3.connect(path)) as found:
        assert found.execute("SELECT count(*) FROM samples").fetchone() == (1,)


def test_a_file_that_is_damaged_or_another_ones_is_refused(path: Path, tmp_path: Path) -> None:
    assert raised(path, "DROP TABLE alembic_version") is ConfigError
    (tmp_path / "text.db").write_text("no database at all, but longer than a header of sqlite is" * 10)
    with pytest.raises(ConfigError):
        Evaluations(f"sqlite:///{tmp_path / 'text.db'}")


def test_a_database_that_another_process_holds_is_in_use(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOCKED_S", 0.1)
    with Evaluations(f"sqlite:///{path}") as kept, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(InUseError):
            kept.add("1", taken(1))
        other.execute("ROLLBACK")
        kept.add("1", taken(1))
        assert len(kept.read("1").samples) == 2


def test_a_full_disk_is_named_and_what_was_kept_stays(path: Path) -> None:
    with Evaluations(f"sqlite:///{path}") as kept:

        def limit(found: sqlite3.Connection, record: object) -> None:
            pages = found.execute("PRAGMA page_count").fetchone()[0]
            found.execute(f"PRAGMA max_page_count={pages}")

        event.listen(kept._database._engine, "connect", limit)
        big = Taken(Sample("cpu", "fresh", 1, why_not="x" * 1_000_000))
        with pytest.raises(CapacityError):
            kept.add("1", big)
        assert kept.read("1").samples == [taken(0).sample]


def test_a_read_only_database_can_be_read_and_refuses_samples(path: Path) -> None:
    def set_read_only(found: sqlite3.Connection, record: object) -> None:
        found.execute("PRAGMA query_only=1")

    with Evaluations(f"sqlite:///{path}") as kept:
        event.listen(kept._database._engine, "connect", set_read_only)
        assert len(kept.read("1").samples) == 1
        with pytest.raises(ConfigError):
            kept.add("1", taken(1))


def test_a_server_that_is_away_is_lost_and_may_be_asked_again() -> None:
    with pytest.raises(LostPeerError) as error:
        Evaluations("postgresql://u@127.0.0.1:1/x", patience_s=0)
    assert error.value.retryable


def test_a_server_that_ends_in_the_middle_is_waited_for_but_not_for_ever(own_server: Server) -> None:
    with Evaluations(own_server.url, patience_s=30) as kept:
        kept.begin(ORDER, 3)
        own_server.end()
        again = threading.Timer(0.5, own_server.start)
        again.start()
        try:
            kept.add("1", taken(0))
        finally:
            again.join(60)
        kept._database._patience_s = 0.5
        own_server.end()
        with pytest.raises(LostPeerError):
            kept.add("1", taken(1))
        own_server.start()
        kept.add("1", taken(1))
        assert [each.number for each in kept.read("1").samples] == [0, 1]


@pytest.mark.parametrize("address", ["trims@/nothing", "other@/postgres"])
def test_a_server_that_refuses_its_user_is_a_wrong_setting(server: Server, address: str) -> None:
    with pytest.raises(ConfigError):
        Evaluations(f"postgresql://{address}?host={server.folder}", patience_s=0)


def test_a_user_who_may_not_write_can_read(server: Server, postgresql_url: str) -> None:
    with Evaluations(postgresql_url) as kept:
        kept.begin(ORDER, 2)
    for statement in (
        "DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN", "GRANT USAGE ON SCHEMA public TO reader",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
    ):  # fmt: skip
        server.execute(statement)
    with Evaluations(postgresql_url.replace("trims@", "reader@"), patience_s=0) as kept:
        assert [each.id for each in kept.summaries()] == ["1"]
        with pytest.raises(PermissionDeniedError):
            kept.add("1", taken(0))
    server.execute("DROP OWNED BY reader")


def test_a_package_that_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(NotSupportedError):
        Evaluations("postgresql://u@h/x", patience_s=0)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(NotSupportedError):
        check_installed()
    with pytest.raises(NotSupportedError):
        Evaluations(f"sqlite:///{tmp_path / 'x.db'}")
