"""Run by alembic: brings the database of the connection that it is given to the newest form."""

from __future__ import annotations

from alembic import context
from trims_bench.evaluation.database.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, transactional_ddl=True,
    render_as_batch=True,
)  # fmt: skip
with context.begin_transaction():
    context.run_migrations()
