"""An evaluation: starts of one model from several tiers in several ways, in turns, each verified and traced."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.errors import InternalError, LostPeerError, ModelNotFoundError, TrimsError
from trims.trace import spans
from trims.trace.levels import Level
from trims.trace.reader import wait_for_trace
from trims_bench.evaluation import tiers
from trims_bench.evaluation.records import Sample, Taken
from trims_bench.evaluation.stages import partition
from trims_bench.evaluation.ways import ALONE, RUNNING, NoWayError, are_close, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trims_predictors.tensors import Tensor

    from trims.control import AsyncAdmin
    from trims.trace.reader import Trace
    from trims_bench.evaluation.records import Order
    from trims_bench.evaluation.ways import Starter

#: Runs after the first one, whose median is what computing alone takes.
_STEADY_RUNS = 5
#: Seconds for processes to write their last spans.
_WRITTEN_S = 5.0
_SAMPLE = "sample"
#: Tier of a start that needs none.
ANY_TIER = "-"
#: The framework alone knows only its file, which is in memory or not.
_OF_ALONE = {"cloud": "file", "file": "file", "disk": "file", "cpu": "cpu", "gpu": "cpu"}

#: Tier, way and batch of samples.
Where = tuple[str, str, int]


def starts(order: Order) -> list[Where]:
    """Return what to take samples of. A predictor that runs already has the weights, and so no tier; it has batches."""
    cold = [
        (_OF_ALONE[tier] if way == ALONE else tier, way, 1)
        for tier in order.tiers
        for way in order.ways
        if way not in RUNNING
    ]
    running = [(ANY_TIER, way, batch) for way in order.ways if way in RUNNING for batch in order.batches]
    return list(dict.fromkeys([*cold, *running]))


@dataclass(slots=True)
class Evaluation:
    """Runs samples.

    Args:
        starter: Starts predictors of it.
        keep: Called with each sample.
    """

    daemon: AsyncAdmin
    model: str
    starter: Starter
    files: Sequence[str]
    folder: str
    keep: Callable[[Taken], None]
    #: Tiers and ways that cannot be brought about, and why.
    unreachable: dict[str, str] = field(default_factory=dict)
    #: First answer to the requests of each batch.
    _answers: dict[int, list[Tensor]] = field(default_factory=dict)

    async def run(self, wanted: Sequence[Where], repeats: int, done: frozenset[tuple[Where, int]]) -> None:
        """Take all samples in turns, so that a machine that changes changes for all of them.

        Args:
            wanted: Starts to sample, out of `starts`.
            repeats: Samples of each.
            done: Samples that an interrupted evaluation has taken, with their numbers.
        """
        for number in range(repeats):
            for where in wanted:
                if not self.unreachable.keys() & set(where[:2]) and (where, number) not in done:
                    await self._take(where, number)

    async def _take(self, where: Where, number: int) -> None:
        tier, way, batch = where
        try:
            await self.starter.prepare(way, batch)
            if tier != ANY_TIER:
                await tiers.bring(self.daemon, self.model, tier, self.files, alone=way == ALONE)
                wrong = await tiers.verify(self.daemon, self.model, tier, self.files, alone=way == ALONE)
                if wrong:
                    self._discard(where, number, f"the state was not {tier}: {wrong}")
                    return
            self.keep(await self._sample(where, number))
        except NoWayError as error:
            self.unreachable[way] = str(error)
        except tiers.Unreachable as error:
            self.unreachable[way if way == ALONE else tier] = str(error)
        except (LostPeerError, ModelNotFoundError):
            raise  # of every sample that follows, too: the evaluation goes on when that is mended
        except TrimsError as error:
            self._discard(where, number, f"{type(error).__name__}: {error}")

    def _discard(self, where: Where, number: int, why_not: str) -> None:
        tier, way, batch = where
        self.keep(Taken(Sample(tier, way, number, why_not=why_not, batch=batch)))

    async def _sample(self, where: Where, number: int) -> Taken:
        tier, way, batch = where
        with spans.span(_SAMPLE, Level.APPLICATION, model=self.model, tier=tier, way=way, batch=batch) as root:
            process, outputs = await self.starter.start(way, batch)
        digest, steady = digest_of(outputs), []
        digests = {digest}
        try:
            for _ in range(_STEADY_RUNS):
                outputs, seconds = await self.starter.again(process, batch)
                steady.append(seconds)
                digests.add(digest_of(outputs))
        finally:
            # Also one that was hot: its lease would keep the weights where the next start needs them not.
            await process.end()
        context = root.context
        assert context is not None, "everything is recorded"
        trace = await asyncio.to_thread(self._trace, context.trace_id)
        whole = next(each for each in trace.spans if each.name == _SAMPLE)
        sample = Sample(
            tier, way, number, whole.seconds, partition(trace, whole), tuple(steady), digest, context.trace_id,
            self._why_not(batch, outputs, digests), batch,
        )  # fmt: skip
        return Taken(sample, trace.spans)

    def _why_not(self, batch: int, outputs: list[Tensor], digests: set[str]) -> str:
        """Return why the answers of a sample forbid to count it; empty if they do not."""
        if len(digests) > 1:
            return "its answers differ from run to run"
        first = self._answers.setdefault(batch, outputs)
        return "" if are_close(first, outputs) else "its answer is another one than that of the first sample"

    def _trace(self, trace_id: str) -> Trace:
        """Return the trace of a sample once the daemon has written its part. Raises InternalError if none was."""
        recorder = spans.recorder()
        if recorder is not None:
            recorder.flush(_WRITTEN_S)
        found = wait_for_trace(self.folder, trace_id, _WRITTEN_S)
        if found is None:
            raise InternalError(f"no spans were written to {self.folder}; see the log for the reason")
        return found
