"""Spares that are prepared for a kind of models: which wait, how the missing ones are made, and when one is given up.

The roles are in `hot_spares` (a model is loaded, its mapping suspended) and `device_spares` (a context of a device, and
no weights). Both make one spare at a time, in the background, while no request is being answered. The warm pool counts
their memory on the host and ends them before anything else.

The first run of a process takes longer than the next ones: frameworks compile kernels for the shapes that they meet,
order weights in their own way and take memory. A predictor with a method `rehearse` does that ahead of the request, on
tensors of the last request's shapes, filled with zeros. Only data types and shapes pass from one process to the other.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from trims.core.errors import ModelNotFoundError
from trims_predictors.tasks import Background

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from trims.wire.frames import Message
    from trims_predictors.children.worker_process import PredictorProcess
    from trims_predictors.deployment.deployment import Deployment, Settings
    from trims_predictors.deployment.key import DeploymentKey
    from trims_predictors.warm.warm_pool import WarmPool

_log = logging.getLogger(__name__)
#: Seconds of a run, at most. A longer one is not rehearsed: a request that comes meanwhile would wait for it.
LONGEST_S = 1.0
#: Kinds and deployments that are remembered.
MOST = 4096
#: Tensors of one run.
_MOST_TENSORS = 64


@dataclass(eq=False)
class Spare:
    """One spare, also while it is made.

    Attributes:
        key: Kind of the spare.
        called: Words for log lines: a spare of what.
        deployment: The model that it loads, or has run.
        identities: What is hidden from its process.
        claimed: Whether a request waits for it while it is made.
    """

    key: Hashable
    called: str
    deployment: Deployment
    identities: object
    process: PredictorProcess = field(init=False)
    claimed: bool = field(default=False, init=False)


S = TypeVar("S", bound=Spare)
K = TypeVar("K")
V = TypeVar("V")


class Spares(ABC, Generic[S]):
    """Has processes prepared ahead of need. Used in the pool's event loop.

    Args:
        warm_pool: Starts their processes, and counts their memory.
        look_s: Seconds between two looks whether those that wait are still wanted.
        candidates: What there may be spares for, by its name. An answer of a model costs no more than a look at it.
    """

    def __init__(
        self, warm_pool: WarmPool, settings: Settings, look_s: float, candidates: Mapping[Any, object]
    ) -> None:
        self._warm_pool = warm_pool
        self._settings = settings
        self._look_s = look_s
        self._candidates = candidates
        self._waiting: list[S] = []
        #: Kinds of which no spare can be made, until their next load.
        self._failed: set[Hashable] = set()
        self._tending = self._closing = False
        self._again: asyncio.TimerHandle | None = None
        self._background = Background(type(self).__name__)

    @abstractmethod
    async def _choose(self) -> S | None:
        """End what is too much. Return the spare that is missing most; None if none is, or there is no room for it."""

    @abstractmethod
    async def _prepare(self, spare: S) -> bool:
        """Prepare a spare's process. Return False if it is not to wait: it is used by now, or was killed."""

    def _looks_again(self) -> bool:
        return bool(self._waiting)

    def _note(self, spare: S, error: Exception) -> None:
        """Note that a spare could not be made. Weights that were evicted are no trouble: a request loads them again."""
        self._failed.add(spare.key)
        level = logging.DEBUG if isinstance(error, ModelNotFoundError) else logging.WARNING
        _log.log(level, "no %s: %s", spare.called, error)

    def _end(self, spare: S, why: str) -> None:
        spare.process.kill(why)

    def tend(self) -> None:
        """Make and end some, in the background, when no request is in the way. Called when a model has answered."""
        if self._candidates and not self._tending and not self._closing:
            self._tending = True
            self._background.start(self._tend())

    async def _tend(self) -> None:
        try:
            await self._warm_pool.calm()
            while (spare := await self._choose()) is not None:
                await self._make(spare)
                await self._warm_pool.calm()
        finally:
            self._tending = False
            if self._again is not None:
                self._again.cancel()
            again = self._looks_again() and not self._closing
            self._again = asyncio.get_running_loop().call_later(self._look_s, self.tend) if again else None

    async def _make(self, spare: S) -> None:
        """Make one spare. What fails is logged: without it, a request has another process."""
        process = None
        try:
            spare.process = process = await self._warm_pool.make(spare.deployment.environment)
            await self._warm_pool.calm()
            waits = await self._prepare(spare)
        except Exception as error:  # noqa: BLE001 - requests are answered without it
            self._note(spare, error)
            if process is not None:
                process.kill("it was to be a spare, and could not be prepared")
            return
        if waits:
            self._waiting.append(spare)
            self._warm_pool.shelve(spare.process)
            spare.process.going.add_done_callback(lambda _: self._gone(spare))

    def _released(self, spare: S) -> PredictorProcess | None:
        """Return the process of a spare that a request takes; None if it is of no use, and ends."""
        process = spare.process
        if not spare.claimed and not self._warm_pool.unshelve(process):
            return None  # it ends already
        if process.dying or spare.identities != self._warm_pool.identities():
            process.kill("a file or folder that is hidden from it was replaced")
            return None
        return process

    def _drop(self, spare: S, why: str) -> None:
        self._waiting.remove(spare)
        if self._warm_pool.unshelve(spare.process):
            _log.info("a %s (process %d) ends: %s", spare.called, spare.process.pid, why)
            self._end(spare, why)

    def _gone(self, spare: S) -> None:
        """Note that the process of a spare ends by itself, or for its memory on the host."""
        if spare in self._waiting:
            self._waiting.remove(spare)
            self._failed.add(spare.key)  # until the next load: it may end each time
            _log.info("a %s (process %d) ended while it waited", spare.called, spare.process.pid)

    async def close(self) -> None:
        """Make no more. Their processes are the warm pool's to end."""
        self._closing = True
        if self._again is not None:
            self._again.cancel()
        self._background.cancel()
        await self._background.wait()


def remember(latest: dict[K, V], key: K, value: V) -> None:
    """Put a value last, and forget the first of too many: models may be registered again and again."""
    latest.pop(key, None)
    latest[key] = value
    if len(latest) > MOST:
        del latest[next(iter(latest))]


class Rehearsals:
    """Inputs that predictors of each deployment got last."""

    def __init__(self) -> None:
        self._given: dict[DeploymentKey, list[Message]] = {}
        self._refused: set[DeploymentKey] = set()

    def ran(self, key: DeploymentKey, answer: Message, run_s: float) -> None:
        """A predictor has answered.

        Args:
            answer: What it said; `given` is there if it can rehearse, and its shapes are others than before.
        """
        given = answer.get("given")
        if run_s > LONGEST_S:
            self._given.pop(key, None)
        elif isinstance(given, list):
            self._given.pop(key, None)
            if 0 < len(given) <= _MOST_TENSORS:
                remember(self._given, key, given)

    def of(self, key: DeploymentKey) -> list[Message] | None:
        """Return the inputs to rehearse; None for no rehearsal."""
        return None if key in self._refused else self._given.get(key)

    def refuse(self, key: DeploymentKey) -> None:
        """Make no more rehearsals of a deployment, of which one has failed."""
        self._refused.add(key)

    def forget(self, key: DeploymentKey) -> None:
        """The deployment is gone."""
        self._given.pop(key, None)
        self._refused.discard(key)
