"""Tables of evaluations, as SQLAlchemy describes them; `migrations` brings a database to this form."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

METADATA = MetaData()

#: Machines and libraries as they were: many evaluations share one.
STACKS = Table(
    "stacks", METADATA,
    Column("digest", String(64), primary_key=True),
    Column("facts", JSON, nullable=False),
)  # fmt: skip

EVALUATIONS = Table(
    "evaluations", METADATA,
    Column("id", String(64), primary_key=True),
    Column("model", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("began_unix_s", Float, nullable=False),
    Column("wanted", Integer, nullable=False),
    Column("ended", Boolean, nullable=False),
    Column("order", JSON, nullable=False),
    Column("unreachable", JSON, nullable=False),
    Column("manifest", Text, nullable=False),
    Column("stack", String(64), ForeignKey("stacks.digest"), nullable=False),
)  # fmt: skip

SAMPLES = Table(
    "samples", METADATA,
    Column("id", Integer, primary_key=True),
    Column("evaluation", String(64), ForeignKey("evaluations.id", ondelete="CASCADE"), nullable=False),
    Column("tier", String(32), nullable=False),
    Column("way", String(32), nullable=False),
    Column("batch", Integer, nullable=False),
    Column("number", Integer, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("stages", JSON, nullable=False),
    Column("steady_s", JSON, nullable=False),
    Column("digest", Text, nullable=False),
    Column("trace_id", String(32), nullable=False),
    Column("why_not", Text, nullable=False),
    UniqueConstraint("evaluation", "tier", "way", "batch", "number", name="sample_once"),
)  # fmt: skip

#: Spans of the samples. Times are nanoseconds of the machine's monotonic clock; `end_ns` is 0 for one without an end.
SPANS = Table(
    "spans", METADATA,
    Column("sample", Integer, ForeignKey("samples.id", ondelete="CASCADE"), primary_key=True),
    Column("span_id", String(16), primary_key=True),
    Column("parent_id", String(16), nullable=False),
    Column("trace_id", String(32), nullable=False),
    Column("name", Text, nullable=False),
    Column("level", Integer, nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("process", JSON, nullable=False),
    Column("thread", BigInteger, nullable=False),
    Column("attributes", JSON, nullable=False),
    Index("spans_by_trace", "trace_id"),
)  # fmt: skip

#: Other findings of an evaluation: layers, workloads.
DOCUMENTS = Table(
    "documents", METADATA,
    Column("evaluation", String(64), ForeignKey("evaluations.id", ondelete="CASCADE"), primary_key=True),
    Column("kind", String(32), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("body", JSON, nullable=False),
)  # fmt: skip
