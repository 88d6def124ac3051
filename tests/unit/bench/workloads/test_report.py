"""Lines of a load's report."""

from __future__ import annotations

from dataclasses import replace

from trims_bench.workloads.max_rate import Probe
from trims_bench.workloads.report import lines
from trims_bench.workloads.result import Latency, ModelLoad, Workload, with_probes

LATENCY = Latency(0.0005, 0.002, 0.25, 1.5, 12.0)
RESULT = Workload(
    "poisson", {"rate": 100.0, "percentile": 99.0, "bound_ms": 20.0, "seed": 1}, 0.0, "digest", 1000, 1000, 990, 15,
    980, {"503": 12, "refused": 8}, 100.0, 99.0, 98.0, LATENCY, None,
    (ModelLoad("bert", 600, 600, 6, LATENCY, LATENCY), ModelLoad("vgg", 400, 380, None, None, None)), 41, 0.5, "fifo",
)  # fmt: skip


def test_the_report_has_rates_lateness_percentiles_errors_and_cold_shares() -> None:
    text = lines(RESULT)
    whole = "\n".join(text)
    for part in (
        "seed 1", "laid down 100.0/s, sent 99.0/s, answered 98.0/s", "sent late (> 1 ms): 15 (1.50%)", "41 at most",
        "errors: 20 (12 503, 8 refused)",
    ):  # fmt: skip
        assert part in whole
    row = next(line.split() for line in text if line.startswith("latency"))
    assert row[1:] == ["500", "us", "2.0", "ms", "250.0", "ms", "1500.0", "ms", "12.0", "s"]
    assert next(line.split() for line in text if line.startswith("first byte"))[2:] == ["-"] * 5
    assert next(line.split() for line in text if line.startswith("bert"))[1:4] == ["600", "600", "1.0%"]
    assert next(line.split() for line in text if line.startswith("vgg"))[1:4] == ["400", "380", "-"]


def test_a_load_that_was_not_whole_says_so() -> None:
    assert "not the whole load: interrupted; 1,000 of 2,000" in "\n".join(
        lines(replace(RESULT, ended="interrupted", scheduled=2000))
    )
    assert "SIGKILL" in "\n".join(lines(replace(RESULT, ended="the generator was ended by SIGKILL")))


def test_a_search_shows_its_probes_and_what_it_found() -> None:
    probes = [Probe(64.0, 1000, 0.01, True, 0.0), Probe(128.0, 90, None, False, 0.02, "11 of 1,000")]
    found = lines(with_probes(RESULT, 64.0, probes))
    assert found[-1] == "highest rate with p99 <= 20 ms: 64.0/s (within 5%)"
    assert found[-2].split()[:4] == ["128.0/s", "90", "2.0%", "-"]
    assert lines(with_probes(RESULT, None, probes))[-1] == "no rate was held with p99 <= 20 ms"
