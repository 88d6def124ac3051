"""Layers of a run: a table by time and by type, from the spans of one or more traced runs.

A row is a module, or an operator outside of all modules, such as a node of ONNX Runtime. Its time is its own: what
layers inside of it took is theirs. So rows add up to no more than the run.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trims.trace.profiles import JOINED, KERNEL, KIND, LAYER, OPERATOR
from trims_bench.evaluation.statistics import median_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trims.trace.reader import Record, Trace

#: Name of the span that layers are parts of.
RUN = "predict"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer in some runs.

    Attributes:
        name: Its path in the model, or the name of its node.
        type: Class of the module, or operator.
        seconds: Median of its own time, without layers inside of it.
        share: Of the run, 0 to 1.
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
        share: Of the run, 0 to 1.
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
        traces: Of runs in which layers were the deepest that was recorded: their times.
        deepest: Of runs in which more was: kernels, and what is accounted for; None for the same runs.
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
    """Operators that are in no other operator, and kernels: what `accounted` is a part of."""
    waiting = [(each, False) for each in children.get(run.span_id, ())]
    while waiting:
        span, is_inside = waiting.pop()
        kind = span.attributes.get(KIND)
        if kind == KERNEL or (kind == OPERATOR and not is_inside):
            yield span
        waiting += [(each, is_inside or kind == OPERATOR) for each in children.get(span.span_id, ())]
