"""Probes of the scenario `max-rate`: loads of Poisson arrivals, each of which is held or not."""

from __future__ import annotations

import contextlib
import math
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

from trims.core.errors import PredictorError
from trims_bench.workloads.load import DONE, INTERRUPTED, drive
from trims_bench.workloads.load import STOPPED as STOPPED_EARLY
from trims_bench.workloads.max_rate import MOST_PROBE_S, Probe, least_requests, search
from trims_bench.workloads.order import Order
from trims_bench.workloads.records import RECORD, STOPPED, is_answered, kind_of, unpacked
from trims_bench.workloads.result import with_probes
from trims_bench.workloads.scenarios import POISSON, lay_down, run_order

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    from trims_bench.workloads.load import Driven
    from trims_bench.workloads.result import Workload
    from trims_bench.workloads.scenarios import Scenario, Target

#: An answer that comes after so many times the bound is not waited for any more; and the least seconds for that.
_PATIENCE, _LEAST_PATIENCE_S = 10, 1.0


class _EndedError(Exception):
    """A probe was interrupted. Not of trims's tree: it never crosses a door."""


def find_max_rate(scenario: Scenario, target: Target, progress: Callable[[Probe], None]) -> Workload:
    """Find the highest rate whose latency at a percentile stays within the bound.

    Args:
        scenario: `max-rate`.
        progress: Called with each probe.

    Returns:
        The load at the highest rate that was held, or, without one, the last load; with all probes.
    """
    probing = _Probing(scenario, target, progress)
    with contextlib.suppress(_EndedError):
        search(probing.probe, scenario.rate or 1.0, probing.wanted / MOST_PROBE_S)
    held = [(probe.rate, result) for probe, result in probing.found if probe.held]
    rate, result = max(held, key=lambda each: each[0]) if held else (None, probing.last)
    assert result is not None, "one was made"
    if probing.ended != DONE:
        result = replace(result, ended=probing.ended)
    result = replace(result, scenario=scenario.name, options=scenario.options)
    return with_probes(result, rate, [probe for probe, _ in probing.found])


class _Probing:
    def __init__(self, scenario: Scenario, target: Target, progress: Callable[[Probe], None]) -> None:
        self._scenario = scenario
        self._target = target
        self._progress = progress
        self._bound_s = (scenario.bound_ms or 0.0) / 1e3
        self._percentile = scenario.percentile or 99.0
        self.wanted = max(least_requests(self._percentile), scenario.requests or 0)
        self.found: list[tuple[Probe, Workload]] = []
        self.last: Workload | None = None
        self.ended = DONE

    def probe(self, rate: float) -> Probe:
        """Make a load at this rate; it ends early once it is clear that the rate is not held."""
        requests = max(self.wanted, math.ceil(rate * (self._scenario.duration or 0.0)))
        patience_s = min(self._scenario.deadline_s, max(_PATIENCE * self._bound_s, _LEAST_PATIENCE_S))
        scenario = replace(
            self._scenario, name=POISSON, rate=rate, requests=requests, duration=None, deadline_s=patience_s
        )
        self._settle()
        judge = Judge(requests, self._percentile, self._bound_s)
        order, seconds = lay_down(scenario, self._target)
        self.last, driven = run_order(scenario, self._target, order, seconds, judge.is_lost)
        if driven.ended not in (DONE, STOPPED_EARLY):
            self.ended = driven.ended
            raise _EndedError
        probe = judge.verdict(rate, driven.records, self.last.late_share)
        self.found.append((probe, self.last))
        self._progress(probe)
        return probe

    def _settle(self) -> None:
        """Ask for each model once, one after the other: what the last probe has left in queues is over then."""
        models = len(self._target.models)
        order = Order(
            self._target.server, self._target.requests, array("H", range(models)), concurrency=1,
            most_requests=models, deadline_ns=round(self._scenario.deadline_s * 1e9),
        )  # fmt: skip
        driven = drive(order)
        failed = [each for each in driven.records if not is_answered(each)]
        if driven.ended == DONE and not failed:
            return
        if driven.ended == INTERRUPTED and self.last is None:
            raise KeyboardInterrupt
        if driven.ended != DONE:
            self.ended = driven.ended
        else:
            model, kind = self._target.models[failed[0]["model"]], kind_of(int(failed[0]["status"]))
            self.ended = f"{model} does not answer a request that comes alone: {kind}"
        if self.last is None:
            raise PredictorError(f"no rate was tried: {self.ended}")
        raise _EndedError


class Judge:
    """Judge of one probe."""

    def __init__(self, requests: int, percentile: float, bound_s: float) -> None:
        self._requests = requests
        self._percentile = percentile
        self._bound_s = bound_s
        self._allowed = math.floor(round(requests * (1 - percentile / 100), 6))
        self._looked = self._slow = 0

    def is_lost(self, driven: Driven) -> bool:
        """Return whether more requests were slow or failed than may be, whatever comes of the others."""
        end = len(driven.packed) // RECORD.size * RECORD.size
        self._slow += int((~self._quick(unpacked(driven.packed[self._looked : end]))).sum())
        self._looked = end
        return self._slow > self._allowed

    def _quick(self, records: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = is_answered(records) & (
            records["done"] - records["intended"] <= round(self._bound_s * 1e9)
        )
        return found

    def verdict(self, rate: float, records: NDArray[Any], late_share: float) -> Probe:
        """Return the probe's verdict. A request that failed is slower than any."""
        import numpy as np

        records = records[records["status"] != STOPPED]  # nothing is known of those
        slow = int((~self._quick(records)).sum())
        latencies = np.where(is_answered(records), (records["done"] - records["intended"]) / 1e9, math.inf)
        found = float(np.percentile(latencies, self._percentile, method="higher")) if len(records) else math.inf
        why = ""
        if slow > self._allowed:
            why = f"{slow:,} of {self._requests:,} requests were slower or failed, and {self._allowed:,} may"
        return Probe(rate, len(records), found if math.isfinite(found) else None, not why, late_share, why)
