"""Tables of layers, of their types and of levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recorded import span, trace
from trims_bench.evaluation.leveled import leveled_of
from trims_bench.evaluation.report import leveled as leveled_report

from trims.trace.levels import Level

if TYPE_CHECKING:
    from trims.trace.reader import Trace

MS = 1_000_000


def a_run(milliseconds: int, **said: Any) -> Trace:
    return trace(span("predict", 0, milliseconds * MS), span("read profile", 0, 1, **said))


def test_tables_show_the_longest_layers_and_how_many_there_are_more() -> None:
    layers = [
        span(
            f"layer{n}", 0, n * MS, "predict", level=Level.FRAMEWORK, kind="layer", type=f"T{n % 2}", input_shapes=[[n]]
        )
        for n in range(1, 5)
    ]
    deep = trace(span("predict", 0, 20 * MS), *layers)
    found = leveled_of("m", {Level.MODEL: [a_run(10)], Level.FRAMEWORK: [deep]}, answers_differ=True)
    text = leveled_report.lines(found, most=2)
    assert [line.split()[0] for line in text[1:4]] == ["layer4", "layer3", "2"]
    assert "+10.000 ms" in "\n".join(text)
    assert "accounted by id: 100.00%" in "\n".join(text)
    assert "the answers to the same inputs differ from run to run" in text


def test_an_overhead_is_told_from_noise_by_its_intervals() -> None:
    runs = {
        Level.MODEL: [a_run(10 + n) for n in range(6)], Level.FRAMEWORK: [a_run(11 + n) for n in range(6)],
        Level.LIBRARY: [a_run(50 + n) for n in range(6)],
    }  # fmt: skip
    last = leveled_report.lines(leveled_of("m", runs))[-3:]
    assert [line.endswith("within the noise") for line in last] == [False, True, False]


def test_without_layers_there_is_no_table_of_them() -> None:
    found = leveled_of("m", {Level.MODEL: [a_run(10)], Level.FRAMEWORK: [a_run(10, error="it has none")]})
    text = leveled_report.lines(found)
    assert not any("accounted" in line for line in text)
    assert text[-1] == "lacks: it has none"
