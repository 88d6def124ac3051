"""Leveled experimentation: runs of one hot predictor at each level, from `model` down, in turns.

A profiler slows down what is above it. So the time of a run is taken from runs in which `model` was the deepest level,
that of layers from runs in which theirs was, and what each level costs the one above is stated.

Source: C. Li, A. Dakkak et al., "XSP: Across-Stack Profiling and Analysis of Machine Learning Models on GPUs", IPDPS
2020.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import InternalError
from trims.trace import spans
from trims.trace.levels import Level
from trims.trace.profiles import shortcomings
from trims.trace.reader import read_traces
from trims_bench.evaluation.layers import RUN, Layers, layers_of
from trims_bench.evaluation.statistics import Median, median_of
from trims_bench.evaluation.ways import HOT, digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims.trace.reader import Trace
    from trims_bench.evaluation.ways import Starter

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
        model: Name of the model.
        levels: From `model` down.
        layers: Their times are of the runs at the level `framework`; those of kernels are of the deepest level's.
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
        deepest: Below `model`.
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
