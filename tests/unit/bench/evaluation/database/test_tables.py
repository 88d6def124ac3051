"""Migrations bring an empty database to the form that the tables describe, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect
from trims_bench.evaluation.database import connection
from trims_bench.evaluation.database.evaluations import Evaluations
from trims_bench.evaluation.database.tables import METADATA

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_migrations_and_tables_describe_the_same_form(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'e.db'}" if kind == "sqlite" else request.getfixturevalue("postgresql_url")
    Evaluations(url).close()
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as found:
        assert compare_metadata(MigrationContext.configure(found), METADATA) == []
        config = Config()
        config.set_main_option("script_location", str(connection._MIGRATIONS))
        config.attributes["connection"] = found
        command.downgrade(config, "base")
        assert inspect(found).get_table_names() == ["alembic_version"]
    engine.dispose()
    Evaluations(url).close()
