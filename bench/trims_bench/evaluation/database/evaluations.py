"""Evaluations in a database: begun, taken sample by sample, gone on with, listed and read."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError, ModelExistsError
from trims.trace.levels import Level
from trims.trace.reader import Process, Record, Trace
from trims_bench.evaluation.database.connection import Connector
from trims_bench.evaluation.records import Evaluated, Order, Sample, Summary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Row
    from typing_extensions import Self

    from trims_bench.evaluation.records import Taken

#: Spans of one sample that are kept; the trace's file has all of them.
_MOST_SPANS = 20_000


class Evaluations:
    """Door to a database of evaluations. Every change is durable when its method returns, and none is half made.

    Example:
        with Evaluations("sqlite:////tmp/evaluations.db") as kept:
            for each in kept.summaries():
                print(each.id, each.model)

    Args:
        url: Address of the database; `Connector` lists its forms and errors.
        patience_s: Seconds for which a server that went away is waited for.
    """

    def __init__(self, url: str, patience_s: float = 30.0) -> None:
        self._database = Connector(url, patience_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Return the database's file or address, without a password."""
        return self._database.name

    def close(self) -> None:
        """Close the database. Idempotent."""
        self._database.close()

    def begin(self, order: Order, wanted: int) -> None:
        """Keep a new evaluation.

        Args:
            wanted: Samples there will be.

        Raises ModelExistsError if there is one with this id.
        """
        from sqlalchemy import insert, select

        from trims_bench.evaluation.database.tables import EVALUATIONS, STACKS

        asked = order.as_json()
        stack, manifest = asked.pop("stack"), asked.pop("manifest")
        digest = hashlib.sha256(json.dumps(stack, sort_keys=True).encode()).hexdigest()

        def work(connection: Connection) -> None:
            kept = connection.execute(select(EVALUATIONS.c.order).where(EVALUATIONS.c.id == order.id)).scalar()
            if kept is not None:
                if kept == json.loads(json.dumps(asked)):
                    return  # written before the connection was lost
                raise ModelExistsError(f"there is an evaluation {order.id} already")
            if connection.execute(select(STACKS.c.digest).where(STACKS.c.digest == digest)).scalar() is None:
                connection.execute(insert(STACKS).values(digest=digest, facts=stack))
            connection.execute(
                insert(EVALUATIONS).values(
                    id=order.id,
                    model=order.model,
                    key=order.key,
                    began_unix_s=order.began_unix_s,
                    wanted=wanted,
                    ended=False,
                    order=asked,
                    unreachable={},
                    manifest=manifest,
                    stack=digest,
                )
            )

        self._database.write(work)

    def add(self, evaluation_id: str, taken: Taken) -> None:
        """Keep a sample with its spans. One that is kept already, by tier, way, batch and number, stays as it is."""
        from sqlalchemy import insert, select

        from trims_bench.evaluation.database.tables import SAMPLES, SPANS

        sample = taken.sample
        row = {
            "evaluation": evaluation_id, "tier": sample.tier, "way": sample.way, "batch": sample.batch,
            "number": sample.number, "seconds": sample.seconds, "stages": dict(sample.stages),
            "steady_s": list(sample.steady_s), "digest": sample.digest, "trace_id": sample.trace_id,
            "why_not": sample.why_not,
        }  # fmt: skip

        def work(connection: Connection) -> None:
            known = (SAMPLES.c[name] == row[name] for name in ("evaluation", "tier", "way", "batch", "number"))
            if connection.execute(select(SAMPLES.c.id).where(*known)).scalar() is None:
                made = connection.execute(insert(SAMPLES).values(**row)).inserted_primary_key
                rows = _span_rows(made[0] if made else 0, taken.spans[:_MOST_SPANS])
                if rows:
                    connection.execute(insert(SPANS), rows)

        self._database.write(work)

    def add_document(self, evaluation_id: str, kind: str, number: int, body: Any) -> None:
        """Keep what else was found, a JSON value; another one of this kind and number is replaced."""
        from sqlalchemy import delete, insert

        from trims_bench.evaluation.database.tables import DOCUMENTS

        def work(connection: Connection) -> None:
            table = DOCUMENTS.c
            connection.execute(
                delete(DOCUMENTS).where(table.evaluation == evaluation_id, table.kind == kind, table.number == number)
            )
            connection.execute(insert(DOCUMENTS).values(evaluation=evaluation_id, kind=kind, number=number, body=body))

        self._database.write(work)

    def end(self, evaluation_id: str, unreachable: Mapping[str, str]) -> None:
        """Note that all samples were taken, but of tiers that could not be brought about."""
        from sqlalchemy import update

        from trims_bench.evaluation.database.tables import EVALUATIONS

        change = update(EVALUATIONS).where(EVALUATIONS.c.id == evaluation_id)
        self._database.write(
            lambda connection: connection.execute(change.values(ended=True, unreachable=dict(unreachable)))
        )

    def remove(self, evaluation_id: str) -> None:
        """Remove an evaluation with all that was kept of it. Idempotent."""
        from sqlalchemy import delete

        from trims_bench.evaluation.database.tables import EVALUATIONS

        self._database.write(
            lambda connection: connection.execute(delete(EVALUATIONS).where(EVALUATIONS.c.id == evaluation_id))
        )

    def summaries(self, model: str | None = None) -> list[Summary]:
        """Return all evaluations, the oldest first.

        Args:
            model: The only one wanted; None for all.
        """
        from sqlalchemy import func, select

        from trims_bench.evaluation.database.tables import EVALUATIONS, SAMPLES

        table = EVALUATIONS.c
        count = select(func.count()).select_from(SAMPLES).where(SAMPLES.c.evaluation == table.id).scalar_subquery()
        wanted = select(
            table.id, table.model, table.began_unix_s, count.label("samples"), table.wanted, table.ended, table.order
        ).order_by(table.began_unix_s, table.id)
        if model is not None:
            wanted = wanted.where(table.model == model)
        rows = self._database.read(lambda connection: connection.execute(wanted).all())
        return [
            Summary(
                row.id, row.model, row.began_unix_s, row.samples, row.wanted, row.ended,
                str(row.order.get("scenario", {}).get("scenario", "")),
            )
            for row in rows
        ]  # fmt: skip

    def find(self, evaluation_id: str) -> str:
        """Return the id of the only evaluation whose id begins so. Raises CallerError if there is none, or several."""
        from sqlalchemy import select

        from trims_bench.evaluation.database.tables import EVALUATIONS

        ids = select(EVALUATIONS.c.id)
        begins = ids.where(EVALUATIONS.c.id.startswith(evaluation_id, autoescape=True)).limit(2)

        def work(connection: Connection) -> Sequence[str]:
            exact = connection.execute(ids.where(EVALUATIONS.c.id == evaluation_id)).scalars().all()
            return exact or connection.execute(begins).scalars().all()

        found = self._database.read(work)
        if len(found) != 1 or not evaluation_id:
            what = "several evaluations have ids that begin" if found else "no evaluation has an id that begins"
            raise CallerError(f"{what} with {evaluation_id!r:.80}; `trims report` lists them")
        return str(found[0])

    def read(self, evaluation_id: str) -> Evaluated:
        """Return the evaluation whose id begins so. Raises CallerError as `find` does."""
        from sqlalchemy import select

        from trims_bench.evaluation.database.tables import DOCUMENTS, EVALUATIONS, SAMPLES, STACKS

        whole = self.find(evaluation_id)

        def work(connection: Connection) -> Evaluated:
            asked = select(EVALUATIONS, STACKS.c.facts).join(STACKS).where(EVALUATIONS.c.id == whole)
            row = connection.execute(asked).one()
            samples = select(SAMPLES).where(SAMPLES.c.evaluation == whole).order_by(SAMPLES.c.id)
            documents = select(DOCUMENTS).where(DOCUMENTS.c.evaluation == whole).order_by(DOCUMENTS.c.number)
            found: dict[str, list[Any]] = {}
            for each in connection.execute(documents):
                found.setdefault(each.kind, []).append(each.body)
            order = Order.from_json({**row.order, "stack": row.facts, "manifest": row.manifest})
            return Evaluated(
                order, [_sample(each) for each in connection.execute(samples)], found, row.ended, row.unreachable
            )

        return self._database.read(work)

    def trace(self, trace_id: str) -> Trace | None:
        """Return the trace of a sample; None if no sample has it."""
        from sqlalchemy import select

        from trims_bench.evaluation.database.tables import SPANS

        wanted = select(SPANS).where(SPANS.c.trace_id == trace_id).order_by(SPANS.c.start_ns)
        rows = self._database.read(lambda connection: connection.execute(wanted).all())
        return Trace(trace_id, [_record(each) for each in rows]) if rows else None


def _sample(row: Row[Any]) -> Sample:
    return Sample(
        row.tier, row.way, row.number, row.seconds, row.stages, tuple(row.steady_s), row.digest, row.trace_id,
        row.why_not, row.batch,
    )  # fmt: skip


def _span_rows(sample: int, spans: Sequence[Record]) -> list[dict[str, Any]]:
    return [
        {
            "sample": sample, "span_id": each.span_id, "parent_id": each.parent_id, "trace_id": each.trace_id,
            "name": each.name, "level": int(each.level), "start_ns": each.start_ns, "end_ns": each.end_ns,
            "process": {
                "pid": each.process.pid, "role": each.process.role, "unix_ns": each.process.unix_ns,
                "monotonic_ns": each.process.monotonic_ns, "boot": each.process.boot,
            },
            "thread": each.thread, "attributes": each.attributes,
        }
        for each in spans
    ]  # fmt: skip


def _record(row: Row[Any]) -> Record:
    return Record(
        Process(**row.process), row.trace_id, row.span_id, row.parent_id, row.name, Level(row.level), row.start_ns,
        row.end_ns, row.thread, row.attributes,
    )  # fmt: skip
