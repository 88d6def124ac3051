"""Leveled experimentation: runs of one hot predictor at each level, from `model` down, in turns.

A profiler slows down what is above it. So the time of a run is taken from runs in which `model` was the deepest level,
that of layers from runs in which theirs was, and what each level costs the one above is stated.

Source: C. Li, A. Dakkak et al., "XSP: Across-Stack Profiling and Analysis of Machine Learning Models on GPUs", IPDPS
2020.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import InternalError
from trims.trace import spans
from trims.trace.levels import Level
from trims.trace.profiles import JOINED, KERNEL, KIND, LAYER, OPERATOR, shortcomings
from trims.trace.reader import read_traces
from trims_bench.evaluation.statistics import Median, median_of
from trims_bench.evaluation.ways import HOT, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trims.trace.reader import Record, Trace
    from trims_bench.evaluation.ways import Starter


# Layers of a run: a table by time and by type, from the spans of one or more traced runs.
#
# A row is a module, or an operator outside of all modules, such as a node of ONNX Runtime. Its time is its own: what
# layers inside of it took is theirs. So rows add up to no more than the run.

#: Name of the span that layers are parts of.
RUN = "predict"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer in some runs.

    Attributes:
        name: Path in the model, or name of the node.
        type: Class of the module, or operator.
        seconds: Median of its own time, without layers inside of it.
        share: Part of the run, 0 to 1.
        device_s: Median of the time of kernels that its operators launched; 0 without a device.
    """

    name: str
    type: str
    seconds: float
    share: float
    device_s: float = 0.0
    input_shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """All layers of one type.

    Attributes:
        type: Class of the modules, or operator.
        share: Part of the run, 0 to 1.
    """

    type: str
    count: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers of runs.

    Attributes:
        run_s: Median of the runs that the layers were seen in.
        layers: The longest first.
        accounted: Part of the time of operators and kernels whose spans are joined to a layer or the run by ids.
        operators: How many operators and kernels that is the part of.
    """

    run_s: float
    layers: tuple[Layer, ...] = ()
    accounted: float = 1.0
    operators: int = 0

    def kinds(self) -> list[Kind]:
        """Return the layers by type, the longest first."""
        seconds, counts = Counter[str](), Counter[str]()
        for each in self.layers:
            seconds[each.type] += each.seconds  # type: ignore[assignment]  # a Counter of floats adds as well
            counts[each.type] += 1
        return [
            Kind(kind, counts[kind], taken, taken / self.run_s if self.run_s else 0.0)
            for kind, taken in seconds.most_common()
        ]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Layers:
        """Return what `as_json` made JSON of."""
        layers = tuple(
            Layer(**{**each, "input_shapes": tuple(map(tuple, each["input_shapes"]))}) for each in found["layers"]
        )
        return cls(found["run_s"], layers, found["accounted"], found["operators"])


def layers_of(traces: Sequence[Trace], deepest: Sequence[Trace] | None = None) -> Layers:
    """Return the layers of traced runs of one model: medians over the runs. Runs without a `predict` are left out.

    Args:
        traces: Traces in which layers were the deepest that was recorded: the source of their times.
        deepest: Traces in which more was recorded: kernels, and what is accounted for; None for the same runs.
    """
    runs = list(_runs(traces))
    if not runs:
        return Layers(0.0)
    run_s = median_of([run.seconds for run, _ in runs]).value
    rows = _by_layer(runs)
    deep = runs if deepest is None else list(_runs(deepest))
    kernels = rows if deepest is None else _by_layer(deep)
    found = [_layer(each, kernels.get(key, each), run_s) for key, each in rows.items()]
    found.sort(key=lambda each: -each.seconds)
    counted = [span for run, children in deep for span in _outermost(run, children)]
    total_s = sum(each.seconds for each in counted)
    joined_s = sum(each.seconds for each in counted if each.attributes.get(JOINED, True))
    return Layers(run_s, tuple(found), joined_s / total_s if total_s else 1.0, len(counted))


def _runs(traces: Sequence[Trace]) -> Iterator[tuple[Record, Mapping[str, Sequence[Record]]]]:
    """Runs that ended, with the spans of their traces by parent."""
    for trace in traces:
        children = trace.children()
        for span in trace.spans:
            if span.name == RUN and span.is_finished:
                yield span, children


def _by_layer(
    runs: Sequence[tuple[Record, Mapping[str, Sequence[Record]]]],
) -> dict[tuple[str, str, int], list[_Row]]:
    """Rows by name, type and how often it ran before in the same run: a module may run twice."""
    rows: dict[tuple[str, str, int], list[_Row]] = {}
    for run, children in runs:
        counts: Counter[tuple[str, str]] = Counter()
        for row in _rows(run, children):
            counts[row.name, row.type] += 1
            rows.setdefault((row.name, row.type, counts[row.name, row.type]), []).append(row)
    return rows


@dataclass(slots=True)
class _Row:
    name: str
    type: str
    seconds: float
    device_s: float
    input_shapes: tuple[tuple[int, ...], ...]


def _layer(rows: Sequence[_Row], kernels: Sequence[_Row], run_s: float) -> Layer:
    seconds = median_of([each.seconds for each in rows]).value
    device_s = median_of([each.device_s for each in kernels]).value
    first = rows[0]
    return Layer(first.name, first.type, seconds, seconds / run_s if run_s else 0.0, device_s, first.input_shapes)


def _rows(run: Record, children: Mapping[str, Sequence[Record]]) -> Iterator[_Row]:
    """Rows of a run. Outermost operators within a module are its own time, others are rows."""
    waiting = deque((each, False) for each in children.get(run.span_id, ()))
    while waiting:
        span, is_inside = waiting.popleft()
        parts, kind = children.get(span.span_id, ()), span.attributes.get(KIND)
        if kind == LAYER or (kind == OPERATOR and not is_inside):
            yield _row(span, children)
        waiting += [(each, is_inside or kind in (LAYER, OPERATOR)) for each in parts]


def _row(span: Record, children: Mapping[str, Sequence[Record]]) -> _Row:
    inner_s, device_s = 0.0, 0.0
    waiting = list(children.get(span.span_id, ()))
    while waiting:
        part = waiting.pop()
        kind = part.attributes.get(KIND)
        if kind == LAYER:
            inner_s += part.seconds
            continue  # what is inside of it is its own
        device_s += part.seconds if kind == KERNEL else 0.0
        waiting += children.get(part.span_id, ())
    shapes = span.attributes.get("input_shapes", ())
    return _Row(
        span.name, str(span.attributes.get("type", span.name)), max(0.0, span.seconds - inner_s), device_s,
        tuple(tuple(shape) for shape in shapes if isinstance(shape, list)),
    )  # fmt: skip


def _outermost(run: Record, children: Mapping[str, Sequence[Record]]) -> Iterator[Record]:
    """Yield kernels, and operators that are in no other operator: the whole that `accounted` is a share of."""
    waiting = [(each, False) for each in children.get(run.span_id, ())]
    while waiting:
        span, is_inside = waiting.pop()
        kind = span.attributes.get(KIND)
        if kind == KERNEL or (kind == OPERATOR and not is_inside):
            yield span
        waiting += [(each, is_inside or kind == OPERATOR) for each in children.get(span.span_id, ())]


_SAMPLE = "leveled sample"
#: Seconds for this process to write its spans.
_WRITTEN_S = 10.0


@dataclass(frozen=True, slots=True)
class LevelTime:
    """Runs of which one level was the deepest that was on.

    Attributes:
        overhead_s: Seconds more than at the level above; None for the uppermost.
    """

    level: str
    seconds: Median
    overhead_s: float | None = None


@dataclass(frozen=True, slots=True)
class Leveled:
    """Runs at all levels.

    Attributes:
        levels: Levels from `model` down.
        layers: Layers, timed in the runs at the level `framework`; their kernels in those of the deepest level.
        lacks: Why a level is not there, or not whole: sentences.
        answers_differ: Runs gave different outputs for the same inputs.
    """

    model: str
    levels: tuple[LevelTime, ...]
    layers: Layers
    lacks: tuple[str, ...] = ()
    answers_differ: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "model": self.model,
            "levels": [
                {"level": each.level, "seconds": each.seconds._asdict(), "overhead_s": each.overhead_s}
                for each in self.levels
            ],
            "layers": self.layers.as_json(), "lacks": list(self.lacks), "answers_differ": self.answers_differ,
        }  # fmt: skip

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Leveled:
        """Return what `as_json` made JSON of."""
        levels = tuple(
            LevelTime(each["level"], Median(**each["seconds"]), each["overhead_s"]) for each in found["levels"]
        )
        layers = Layers.from_json(found["layers"])
        return cls(found["model"], levels, layers, tuple(found["lacks"]), found["answers_differ"])


def levels_to(deepest: Level) -> list[Level]:
    """Return the levels to run at: from `model` to a deeper one."""
    return [each for each in Level if Level.MODEL <= each <= deepest]


async def runs_at_levels(starter: Starter, model: str, deepest: Level, repeats: int, folder: str) -> Leveled:
    """Run a hot predictor at each level, in turns. This process must record everything.

    Args:
        deepest: Deepest level that was recorded, below `model`.
        repeats: Runs at each level that count; one more does not, in which profilers are loaded.

    Raises InternalError if nothing was recorded.
    """
    levels, digests = levels_to(deepest), set()
    ids: dict[Level, list[str]] = {level: [] for level in levels}
    await starter.prepare(HOT)
    process, _ = await starter.start(HOT)
    try:
        for number in range(repeats + 1):
            for level in levels:
                sample = spans.span(_SAMPLE, Level.APPLICATION, model=model, deepest=level.name.lower())
                with sample as whole, spans.down_to(level):
                    outputs, _ = await starter.again(process)
                await asyncio.to_thread(_flush, folder)  # which would take the processor from the next run
                digests.add(digest_of(outputs))
                if number and whole.context is not None:
                    ids[level].append(whole.context.trace_id)
    finally:
        await process.end()
    by_id = {each.trace_id: each for each in read_traces(folder, pid=os.getpid())}
    traces = {level: [by_id[each] for each in ids[level] if each in by_id] for level in levels}
    return leveled_of(model, traces, answers_differ=len(digests) > 1)


def _flush(folder: str) -> None:
    recorder = spans.recorder()
    if recorder is None or not recorder.flush(_WRITTEN_S):
        raise InternalError(f"no spans were written to {folder}; see the log for the reason")


def leveled_of(model: str, traces: Mapping[Level, Sequence[Trace]], *, answers_differ: bool = False) -> Leveled:
    """Return what traced runs say of each level. Raises InternalError if a level has no run that ended."""
    found: list[LevelTime] = []
    for level in sorted(traces):
        taken = [span.seconds for trace in traces[level] for span in trace.spans if span.name == RUN]
        if not taken:
            raise InternalError(f"no run at the level {level.name.lower()} was recorded")
        seconds = median_of(taken)
        overhead_s = seconds.value - found[-1].seconds.value if found else None
        found.append(LevelTime(level.name.lower(), seconds, overhead_s))
    deepest = traces[max(traces)]
    lacks = dict.fromkeys(each for trace in deepest for each in shortcomings(trace))
    layers = layers_of(traces.get(Level.FRAMEWORK, deepest), deepest)
    return Leveled(model, tuple(found), layers, tuple(lacks), answers_differ)
