"""Tables of evaluations, samples, spans, stacks and documents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "stacks",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("facts", sa.JSON, nullable=False),
    )
    op.create_table(
        "evaluations",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("began_unix_s", sa.Float, nullable=False),
        sa.Column("wanted", sa.Integer, nullable=False),
        sa.Column("ended", sa.Boolean, nullable=False),
        sa.Column("order", sa.JSON, nullable=False),
        sa.Column("unreachable", sa.JSON, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
        sa.Column("stack", sa.String(64), sa.ForeignKey("stacks.digest"), nullable=False),
    )
    op.create_table(
        "samples",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("evaluation", sa.String(64), sa.ForeignKey("evaluations.id", ondelete="CASCADE"), nullable=False),
        sa.Column("tier", sa.String(32), nullable=False),
        sa.Column("way", sa.String(32), nullable=False),
        sa.Column("batch", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("stages", sa.JSON, nullable=False),
        sa.Column("steady_s", sa.JSON, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("trace_id", sa.String(32), nullable=False),
        sa.Column("why_not", sa.Text, nullable=False),
        sa.UniqueConstraint("evaluation", "tier", "way", "batch", "number", name="sample_once"),
    )
    op.create_table(
        "spans",
        sa.Column("sample", sa.Integer, sa.ForeignKey("samples.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("span_id", sa.String(16), primary_key=True),
        sa.Column("parent_id", sa.String(16), nullable=False),
        sa.Column("trace_id", sa.String(32), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("level", sa.Integer, nullable=False),
        sa.Column("start_ns", sa.BigInteger, nullable=False),
        sa.Column("end_ns", sa.BigInteger, nullable=False),
        sa.Column("process", sa.JSON, nullable=False),
        sa.Column("thread", sa.BigInteger, nullable=False),
        sa.Column("attributes", sa.JSON, nullable=False),
    )
    op.create_index("spans_by_trace", "spans", ["trace_id"])
    op.create_table(
        "documents",
        sa.Column("evaluation", sa.String(64), sa.ForeignKey("evaluations.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("kind", sa.String(32), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
    )


def downgrade() -> None:
    """Drop the tables, with all that they hold."""
    for name in ("documents", "spans", "samples", "evaluations", "stacks"):
        op.drop_table(name)
