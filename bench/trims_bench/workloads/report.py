"""Report of a load, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.units import format_latency
from trims_bench.workloads.load import DONE, INTERRUPTED
from trims_bench.workloads.max_rate import TOLERANCE

if TYPE_CHECKING:
    from trims_bench.workloads.result import Latency, Workload


def lines(result: Workload) -> list[str]:
    """Return the lines that report a load."""
    stated = ", ".join(f"{name} {value}" for name, value in result.options.items() if value is not None)
    text = [f"{result.scenario}: {stated}"]
    if result.ended != DONE:
        why = "interrupted" if result.ended == INTERRUPTED else result.ended
        text.append(f"not the whole load: {why}; {result.requests:,} of {result.scheduled:,} requests are reported")
    laid_down = "" if result.rate_asked is None else f"laid down {result.rate_asked:.1f}/s, "
    text.append(f"rate: {laid_down}sent {result.rate_sent:.1f}/s, answered {result.rate_answered:.1f}/s")
    text.append(
        f"requests: {result.requests:,}, sent late (> 1 ms): {result.late:,} ({result.late_share:.2%}), "
        f"answered: {result.answered:,}, connections: {result.connections:,} at most"
    )
    failed = sum(result.errors.values())
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in result.errors.items())
    text.append(f"errors: {failed:,}" + (f" ({kinds})" if failed else ""))
    text += ["", f"{'':24}{'p50':>10}{'p90':>10}{'p99':>10}{'p99.9':>10}{'max':>10}"]
    text.append(_latency_line("latency", result.latency))
    text.append(_latency_line("first byte", result.first_byte))
    text += ["", *_model_lines(result)]
    return text + _probe_lines(result)


def _latency_line(name: str, found: Latency | None) -> str:
    if found is None:
        return f"{name:24}" + "".join(f"{'-':>10}" for _ in range(5))
    values = (found.p50, found.p90, found.p99, found.p999, found.longest)
    return f"{name:24}" + "".join(f"{format_latency(each):>10}" for each in values)


def _model_lines(result: Workload) -> list[str]:
    text = [f"{'model':24}{'requests':>10}{'answered':>10}{'cold':>10}{'p50':>10}{'p99':>10}{'cold p50':>10}"]
    for each in result.models:
        share = "-" if each.cold_share is None else f"{each.cold_share:.1%}"
        p50, p99 = (
            ("-", "-") if each.latency is None else (format_latency(each.latency.p50), format_latency(each.latency.p99))
        )
        cold = "-" if each.cold_latency is None else format_latency(each.cold_latency.p50)
        text.append(f"{each.model:24}{each.requests:>10,}{each.answered:>10,}{share:>10}{p50:>10}{p99:>10}{cold:>10}")
    return text


def _probe_lines(result: Workload) -> list[str]:
    if not result.probes:
        return []
    text = ["", f"{'probe':>10}{'requests':>10}{'late':>8}{'latency':>10}"]
    for probe in result.probes:
        took = "-" if probe.seconds is None else format_latency(probe.seconds)
        text.append(
            f"{f'{probe.rate:.1f}/s':>10}{probe.requests:>10,}{probe.late_share:>8.1%}{took:>10}  {probe.why or 'held'}"
        )
    bound = f"p{result.options['percentile']:g} <= {result.options['bound_ms']:g} ms"
    if result.max_rate is None:
        return [*text, f"no rate was held with {bound}"]
    return [*text, f"highest rate with {bound}: {result.max_rate:.1f}/s (within {TOLERANCE:.0%})"]
