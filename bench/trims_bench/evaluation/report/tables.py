"""A report as CSV: one line for each start and stage, and one for each batch."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from trims_bench.evaluation.report.rows import batches, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims_bench.evaluation.records import Evaluated

#: The first columns say what a line is of; `stage` is `total` for whole starts and `steady run` for batches.
COLUMNS = (
    "evaluation", "model", "tier", "way", "batch", "stage", "seconds", "low_s", "high_s", "samples", "share_of_ideal",
    "over_alone", "over_fresh", "rows_per_s", "verdict",
)  # fmt: skip


def as_csv(evaluations: Sequence[Evaluated]) -> str:
    """Return evaluations as CSV with a line of headings."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for each in evaluations:
        about = {"evaluation": each.order.id, "model": each.order.model}
        for row in rows(each.samples):
            of = {**about, "tier": row.tier, "way": row.way, "batch": row.batch}
            whole = {
                "seconds": row.seconds.value, "low_s": row.seconds.low, "high_s": row.seconds.high,
                "samples": row.seconds.samples, "share_of_ideal": row.share_of_ideal, "over_alone": row.over_alone,
                "over_fresh": row.over_fresh, "verdict": row.seconds.verdict,
            }  # fmt: skip
            writer.writerow({**of, "stage": "total", **whole})
            writer.writerows({**of, "stage": name, "seconds": seconds} for name, seconds in row.stages.items())
        for batch in batches(each.samples):
            line = {"seconds": batch.run.value, "low_s": batch.run.low, "high_s": batch.run.high}
            what = {"way": batch.way, "batch": batch.batch, "stage": "steady run", "samples": batch.run.samples}
            writer.writerow({**about, **what, **line, "rows_per_s": batch.per_s})
    return text.getvalue()
