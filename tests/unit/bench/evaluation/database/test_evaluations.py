"""The contract of the database, for sqlite and for PostgreSQL."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest
from trims_bench.evaluation.database.evaluations import Evaluations
from trims_bench.evaluation.records import Order, Sample, Summary, Taken

from trims.core.errors import CallerError, ModelExistsError
from trims.trace.levels import Level
from trims.trace.reader import Process, Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDER = Order(
    "20260101-1", "m", "key", ("cpu",), ("fresh", "hot"), 3, (1, 4), idle_s=0.5, began_unix_s=7.5,
    stack={"processors": 2, "libraries": {"numpy": "2"}}, manifest="name: m",
)  # fmt: skip
OTHER = Order("20260102-2", "n", "key", ("disk",), ("fresh",), 1, began_unix_s=8.5, stack=ORDER.stack)
SAMPLES = [
    Sample("cpu", "fresh", 0, 0.5, {"open": 0.4, "unattributed": 0.1}, (0.1, 0.2), "digest", "a" * 32),
    Sample("cpu", "fresh", 1, why_not="the state was not cpu"),
    Sample("-", "hot", 0, 0.1, {"run": 0.1}, (0.1,), "other", "b" * 32, batch=4),
]
PROCESS = Process(7, "daemon", 1_000, 2_000, "boot")
SPANS = [
    Record(
        PROCESS, "a" * 32, "1" * 16, "", "sample", Level.APPLICATION, 1 << 60, (1 << 60) + 5, 1 << 40, {"tier": "cpu"}
    ),
    Record(PROCESS, "a" * 32, "2" * 16, "1" * 16, "open", Level.MODEL, (1 << 60) + 1, 0, 9, {"open_bytes": 1 << 50}),
]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'evaluations.db'}"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def kept(url: str) -> Iterator[Evaluations]:
    with Evaluations(url) as opened:
        yield opened


def begun(kept: Evaluations) -> None:
    kept.begin(ORDER, 9)
    for sample in SAMPLES:
        kept.add(ORDER.id, Taken(sample, SPANS if sample is SAMPLES[0] else ()))


def test_what_was_kept_is_read_back_also_by_another_connection(kept: Evaluations, url: str) -> None:
    begun(kept)
    with Evaluations(url) as other:
        found = other.read(ORDER.id)
        assert (found.order, found.samples) == (ORDER, SAMPLES)
        assert list(found.samples[0].stages) == ["open", "unattributed"]
        assert (found.ended, found.unreachable, found.documents) == (False, {}, {})
        trace = other.trace("a" * 32)
        assert trace is not None
        assert trace.spans == SPANS
        assert other.trace("c" * 32) is None


def test_an_order_goes_through_json_unchanged() -> None:
    assert Order.from_json(json.loads(json.dumps(ORDER.as_json()))) == ORDER


def test_evaluations_are_listed_in_their_order_with_what_is_missing(kept: Evaluations) -> None:
    kept.begin(OTHER, 1)
    begun(kept)
    kept.end(ORDER.id, {"gpu": "there is none"})
    assert kept.summaries() == [
        Summary(ORDER.id, "m", 7.5, 3, 9, ended=True), Summary(OTHER.id, "n", 8.5, 0, 1, ended=False),
    ]  # fmt: skip
    assert [each.id for each in kept.summaries("n")] == [OTHER.id]
    assert kept.read(ORDER.id).unreachable == {"gpu": "there is none"}


def test_a_sample_that_comes_twice_is_kept_once(kept: Evaluations) -> None:
    begun(kept)
    kept.add(ORDER.id, Taken(SAMPLES[0], SPANS))
    kept.begin(ORDER, 9)  # the answer to the first one was lost
    assert kept.read(ORDER.id).samples == SAMPLES


def test_an_id_is_of_one_evaluation(kept: Evaluations) -> None:
    begun(kept)
    kept.begin(OTHER, 1)
    with pytest.raises(ModelExistsError):
        kept.begin(Order(ORDER.id, "other", "key", (), (), 1), 1)
    for wrong in ("2026", "2027", "", "%"):
        with pytest.raises(CallerError):
            kept.find(wrong)
    assert kept.find("20260102") == OTHER.id
    longer = Order(f"{OTHER.id}0", "n", "key", (), (), 1)
    kept.begin(longer, 1)
    assert kept.find(OTHER.id) == OTHER.id, "an id is itself, though another one begins so"


def test_documents_are_kept_by_kind_and_number(kept: Evaluations) -> None:
    begun(kept)
    kept.add_document(ORDER.id, "workload", 1, {"rate": 2})
    kept.add_document(ORDER.id, "workload", 0, {"rate": 1})
    kept.add_document(ORDER.id, "workload", 1, {"rate": 3})
    assert kept.read(ORDER.id).documents == {"workload": [{"rate": 1}, {"rate": 3}]}


def test_what_is_removed_is_gone_with_all_that_belongs_to_it(kept: Evaluations) -> None:
    begun(kept)
    kept.add_document(ORDER.id, "layers", 0, [])
    kept.begin(OTHER, 1)
    kept.remove(ORDER.id)
    kept.remove(ORDER.id)
    assert [each.id for each in kept.summaries()] == [OTHER.id]
    assert kept.trace("a" * 32) is None


def test_processes_that_make_one_database_at_the_same_time_agree(url: str) -> None:
    failed: list[BaseException] = []

    def make() -> None:
        try:
            Evaluations(url).close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert failed == []
    with Evaluations(url) as kept:
        assert kept.summaries() == []
