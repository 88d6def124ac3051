"""An evaluation: starts of one model from several tiers in several ways, in turns, each verified and traced."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.errors import InternalError, TrimsError
from trims.trace import spans
from trims.trace.levels import Level
from trims.trace.reader import wait_for_trace
from trims_predictors.evaluation import tiers
from trims_predictors.evaluation.stages import partition
from trims_predictors.evaluation.ways import HOT, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trims.control import AsyncAdmin
    from trims.trace.reader import Trace
    from trims_predictors.evaluation.ways import Starter

#: Runs after the first one, whose median is what computing alone takes.
_STEADY_RUNS = 5
#: Seconds for processes to write their last spans.
_WRITTEN_S = 5.0
_SAMPLE = "sample"
#: Tier of a start that needs none.
ANY_TIER = "-"


@dataclass(frozen=True, slots=True)
class Sample:
    """One start.

    Attributes:
        tier: Where the weights were.
        way: How the process came about.
        number: Which repetition.
        seconds: From nothing to the first answer.
        stages: Seconds of each stage, which add up to `seconds`.
        steady_s: Seconds of each run after the first one.
        digest: Of the outputs.
        trace_id: Its trace.
        why_not: Why it does not count; empty if it does.
    """

    tier: str
    way: str
    number: int
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    steady_s: tuple[float, ...] = ()
    digest: str = ""
    trace_id: str = ""
    why_not: str = ""


def starts(from_tiers: Sequence[str], ways: Sequence[str]) -> list[tuple[str, str]]:
    """Return the tiers and ways to take samples of. A predictor that runs already has the weights: it has no tier."""
    cold = [(tier, way) for tier in from_tiers for way in ways if way != HOT]
    return [*cold, *([(ANY_TIER, HOT)] if HOT in ways else [])]


@dataclass(slots=True)
class Evaluation:
    """Runs samples.

    Args:
        daemon: Its control door.
        model: As registered.
        starter: Starts predictors of it.
        folder: Where traces are.
        keep: Called with each sample.
    """

    daemon: AsyncAdmin
    model: str
    starter: Starter
    folder: str
    keep: Callable[[Sample], None]
    #: Tiers that cannot be brought about, and why.
    unreachable: dict[str, str] = field(default_factory=dict)

    async def run(
        self, from_tiers: Sequence[str], ways: Sequence[str], repeats: int, done: frozenset[tuple[str, str, int]]
    ) -> None:
        """Take all samples in turns, so that a machine that changes changes for all of them.

        Args:
            from_tiers: Of `tiers.TIERS`.
            ways: Of `ways.WAYS`.
            repeats: Samples of each tier and way.
            done: Tier, way and number of samples that an interrupted evaluation has taken.
        """
        for number in range(repeats):
            for tier, way in starts(from_tiers, ways):
                if tier not in self.unreachable and (tier, way, number) not in done:
                    await self._take(tier, way, number)

    async def _take(self, tier: str, way: str, number: int) -> None:
        try:
            await self.starter.prepare(way)
            if tier != ANY_TIER:
                await tiers.bring(self.daemon, self.model, tier)
                wrong = await tiers.verify(self.daemon, self.model, tier)
                if wrong:
                    self.keep(Sample(tier, way, number, why_not=f"the state was not {tier}: {wrong}"))
                    return
            self.keep(await self._sample(tier, way, number))
        except tiers.Unreachable as error:
            self.unreachable[tier] = str(error)
        except TrimsError as error:
            self.keep(Sample(tier, way, number, why_not=f"{type(error).__name__}: {error}"))

    async def _sample(self, tier: str, way: str, number: int) -> Sample:
        with spans.span(_SAMPLE, Level.APPLICATION, model=self.model, tier=tier, way=way) as root:
            process, outputs = await self.starter.start(way)
        digest, steady = digest_of(outputs), []
        digests = {digest}
        for _ in range(_STEADY_RUNS):
            began = time.perf_counter()
            outputs = await self.starter.again(process)
            steady.append(time.perf_counter() - began)
            digests.add(digest_of(outputs))
        await (
            process.end()
        )  # also one that was hot: its lease would keep the weights where the next start needs them not
        context = root.context
        assert context is not None, "everything is recorded"
        trace = await asyncio.to_thread(self._trace, context.trace_id)
        whole = next(each for each in trace.spans if each.name == _SAMPLE)
        why_not = "its answers differ from run to run" if len(digests) > 1 else ""
        return Sample(
            tier, way, number, whole.seconds, partition(trace, whole), tuple(steady), digest, context.trace_id, why_not
        )

    def _trace(self, trace_id: str) -> Trace:
        """Return the trace of a sample once the daemon has written its part. Raises InternalError if none was."""
        recorder = spans.recorder()
        if recorder is not None:
            recorder.flush(_WRITTEN_S)
        found = wait_for_trace(self.folder, trace_id, _WRITTEN_S)
        if found is None:
            raise InternalError(f"no spans were written to {self.folder}; see the log for the reason")
        return found
