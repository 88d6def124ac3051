"""Results of loads: made of records, kept as documents."""

from __future__ import annotations

import json

import pytest
from trims_bench.workloads.load import DONE, INTERRUPTED, Driven
from trims_bench.workloads.max_rate import Probe
from trims_bench.workloads.records import COLD, NEVER, RECORD, REFUSED, UNKNOWN, UNSENT, WARM
from trims_bench.workloads.result import Run, Workload, summarize, with_probes

from trims.core.errors import CallerError

MS = 1_000_000
OPTIONS = {"rate": 100.0, "percentile": 99.0, "bound_ms": 5.0}


def made(*records: tuple[int, int, int, int, int, int], ended: str = DONE, seconds: float | None = 2.0) -> Workload:
    """A result of records: model, status, cold, intended, sent and done in milliseconds."""
    packed = bytearray()
    for number, (model, status, cold, intended, sent, done) in enumerate(records):
        times = (each * MS if each != NEVER else NEVER for each in (intended, sent, done, done))
        packed += RECORD.pack(number, model, status, cold, *times)
    driven = Driven(ended, 3, 0.5, "fifo", packed)
    scheduled = 10 if seconds else None
    return summarize("poisson", OPTIONS, ["a", "b"], Run(scheduled, seconds, "digest", 1.5), driven)


MIXED = (
    (0, 200, COLD, 0, 0, 100), (0, 200, WARM, 10, 10, 14), (1, 200, UNKNOWN, 20, 22, 26), (1, 503, UNKNOWN, 30, 30, 31),
    (0, REFUSED, UNKNOWN, 40, NEVER, 41), (1, UNSENT, UNKNOWN, 50, NEVER, 60), (0, 503, UNKNOWN, 60, 61, 62),
)  # fmt: skip


def test_latency_counts_from_the_intended_time_of_all_that_were_answered() -> None:
    found = made(*MIXED)
    assert found.latency is not None
    assert (found.latency.p50, found.latency.longest) == (pytest.approx(0.006), pytest.approx(0.1))
    assert found.latency.p99 == pytest.approx(0.09812)
    assert (found.requests, found.scheduled, found.sent, found.answered) == (7, 10, 5, 3)
    assert found.errors == {"503": 2, "refused": 1, "unsent": 1}
    assert (found.rate_asked, found.rate_sent, found.rate_answered) == (5.0, 2.5, 1.5)


def test_what_was_sent_more_than_a_millisecond_late_or_never_is_late() -> None:
    found = made(*MIXED)
    assert found.late == 3, "one by 2 ms, two never; 1 ms is not late"
    assert found.late_share == pytest.approx(3 / 7)


def test_each_model_has_its_part_and_its_cold_share_if_that_is_known() -> None:
    one, other = made(*MIXED).models
    assert (one.model, one.requests, one.answered, one.cold, one.cold_share) == ("a", 4, 2, 1, 0.5)
    assert one.cold_latency is not None
    assert one.cold_latency.p50 == pytest.approx(0.1)
    assert (other.cold, other.cold_share, other.cold_latency) == (None, None, None)


def test_a_load_without_answers_has_no_latency_and_an_empty_one_no_rate() -> None:
    failed = made((0, REFUSED, UNKNOWN, 0, NEVER, 1))
    assert (failed.latency, failed.answered, failed.models[1].latency) == (None, 0, None)
    empty = made(ended=INTERRUPTED, seconds=None)
    assert (empty.requests, empty.late_share, empty.rate_sent, empty.rate_asked) == (0, 0.0, 0.0, None)


def test_a_result_is_a_document_and_comes_back_from_it() -> None:
    found = with_probes(
        made(*MIXED), 80.0, [Probe(80.0, 1000, 0.004, True, 0.0), Probe(160.0, 9, None, False, 0.1, "x")]
    )
    document = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert Workload.from_json(document) == found
    assert document["version"] == 1


@pytest.mark.parametrize("change", [{"version": 2}, {"models": 7}, {"unknown": 1}, {"latency": {"p50": 1}}])
def test_another_document_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(CallerError):
        Workload.from_json({**made(*MIXED).as_json(), **change})
    with pytest.raises(CallerError):
        Workload.from_json({})
