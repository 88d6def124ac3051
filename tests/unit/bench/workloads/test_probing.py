"""Probes of `max-rate`: their verdicts, and a whole search against a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from load_server import load_server
from loads import target
from trims_bench.workloads import probing, scenarios
from trims_bench.workloads.load import INTERRUPTED, Driven
from trims_bench.workloads.load import STOPPED as STOPPED_EARLY
from trims_bench.workloads.probing import Judge, find_max_rate
from trims_bench.workloads.records import RECORD, STOPPED, UNKNOWN
from trims_bench.workloads.scenarios import choose

from trims.core.errors import PredictorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_bench.workloads.max_rate import Probe
    from trims_bench.workloads.order import Order

MS = 1_000_000


def driven(*outcomes: tuple[int, int]) -> Driven:
    """Records of a status and a latency in milliseconds each."""
    found = Driven()
    for number, (status, latency) in enumerate(outcomes):
        found.packed += RECORD.pack(number, 0, status, UNKNOWN, 0, 0, latency * MS, latency * MS)
    return found


def test_a_rate_is_held_while_no_more_are_slow_than_the_percentile_allows() -> None:
    fine = driven(*[(200, 1)] * 99, (200, 900))
    judge = Judge(100, 99, 0.01)
    assert not judge.is_lost(fine)
    probe = judge.verdict(50.0, fine.records, 0.02)
    assert (probe.held, probe.why, probe.requests, probe.late_share) == (True, "", 100, 0.02)
    slow = driven(*[(200, 1)] * 98, (200, 900), (200, 900))
    judge = Judge(100, 99, 0.01)
    assert judge.is_lost(slow)
    assert judge.verdict(50.0, slow.records, 0.0).held is False


def test_a_request_that_failed_is_slower_than_any_and_one_that_was_stopped_is_none() -> None:
    failed = driven(*[(200, 1)] * 90, *[(503, 1)] * 10)
    probe = Judge(100, 99, 0.01).verdict(50.0, failed.records, 0.0)
    assert (probe.held, probe.seconds) == (False, None)
    stopped = driven(*[(200, 1)] * 99, (STOPPED, 1))
    assert Judge(100, 99, 0.01).verdict(50.0, stopped.records, 0.0).held


def test_a_judge_looks_at_each_record_once() -> None:
    judge, found = Judge(1000, 99, 0.01), driven(*[(200, 900)] * 6)
    assert not judge.is_lost(found)
    assert not judge.is_lost(found)
    found.packed += driven(*[(200, 900)] * 5).packed
    assert judge.is_lost(found)


def queue(order: Order, watch: Callable[[Driven], bool] = lambda _: False) -> Driven:
    """Answer an order as a server that takes 5 ms for each request, one after the other."""
    found, free = Driven(), 0
    for number, intended in enumerate(order.times_ns or [0]):
        free = max(free, intended) + 5 * MS
        found.packed += RECORD.pack(number, 0, 200, UNKNOWN, intended, intended, free, free)
        if watch(found):
            found.ended = STOPPED_EARLY
            break
    return found


def test_a_search_finds_the_rate_that_a_server_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (probing, scenarios):
        monkeypatch.setattr(module, "drive", queue)
    tried: list[Probe] = []
    given = {"bound_ms": 100.0, "percentile": 50.0, "rate": 80.0, "duration": 5.0, "requests": 100}
    result = find_max_rate(choose("max-rate", given), target(1), tried.append)
    assert result.max_rate is not None
    assert 160 <= result.max_rate <= 240, "it serves 200 a second"
    assert list(result.probes) == tried
    assert {probe.held for probe in tried} == {True, False}
    assert (result.scenario, result.options["bound_ms"], result.errors) == ("max-rate", 100.0, {})
    assert result.rate_asked == pytest.approx(result.max_rate, rel=0.1)


def test_a_server_that_answers_no_request_alone_is_not_searched() -> None:
    scenario = choose("max-rate", {"bound_ms": 100.0, "percentile": 50.0})
    with load_server("--status", "503") as port, pytest.raises(PredictorError, match="503"):
        find_max_rate(scenario, target(port), lambda _: None)


def test_a_server_that_ends_in_the_middle_ends_the_search_with_what_it_has_found() -> None:
    scenario = choose("max-rate", {"bound_ms": 1000.0, "percentile": 50.0, "rate": 200.0, "duration": 0.01})
    with load_server("--refuse-after", "150") as port:
        result = find_max_rate(scenario, target(port), lambda _: None)
    assert result.max_rate == 200.0
    assert "refused" in result.ended


def test_ctrl_c_ends_a_search_with_what_it_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(probe: Probe) -> None:
        tried.append(probe)
        monkeypatch.setattr(probing, "drive", lambda _: Driven(INTERRUPTED))

    tried: list[Probe] = []
    with load_server() as port:
        scenario = choose("max-rate", {"bound_ms": 1000.0, "percentile": 50.0, "rate": 100.0, "duration": 0.01})
        result = find_max_rate(scenario, target(port), interrupted)
        assert (result.ended, result.max_rate, len(result.probes)) == (INTERRUPTED, 100.0, 1)
        with pytest.raises(KeyboardInterrupt):
            find_max_rate(scenario, target(port), interrupted)
        monkeypatch.setattr(probing, "drive", lambda _: Driven("the generator was ended by SIGKILL"))
        with pytest.raises(PredictorError):
            find_max_rate(scenario, target(port), interrupted)
