"""Hot spares: predictors that have loaded a model in steady demand, and wait for its next request.

A hot spare is a process that has never seen a request. It has opened the weights and made the model ready, so a request
that finds no predictor of the model takes it and only has to run, for the second time if its predictor can rehearse
(`rehearsals`). It is used up by that, and another one is made in the background. While it waits it holds neither a
lease nor the memory of the weights (`trims_client.mapping.suspended`). At its use it opens the model by name. If that
stands for other weights by now, or they lie elsewhere, the hot spare ends, and the request has a predictor as if there
had been none.

Which models have some is decided by `demand`. One is made at a time, only of weights that are resident, and only if
there is room for it; the warm pool counts its memory and ends it before anything else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.errors import ModelNotFoundError, TrimsError
from trims_predictors.deployment.deployment import is_device, load_message
from trims_predictors.tasks import Background
from trims_predictors.warm.arrival_rates import Demand
from trims_predictors.warm.warmup_inputs import Rehearsals

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.wire.frames import Message
    from trims_predictors.children.worker_process import PredictorProcess
    from trims_predictors.deployment.deployment import Deployment, Settings
    from trims_predictors.deployment.key import DeploymentKey
    from trims_predictors.warm.warm_pool import WarmPool

_log = logging.getLogger(__name__)
#: Seconds for the daemon and the process together, to give a lease back.
_PARK_S = 10.0
#: Lines of which the image is remembered.
_MOST_IMAGES = 4096
#: Seconds between two looks whether models have cooled.
_LOOK_S = 10.0
#: Signals that end a process which has read what is parked.
_OF_READING = ("SIGSEGV", "SIGBUS")


@dataclass(eq=False, slots=True)
class _HotSpare:
    """One of them, from the start of its process to its use or end.

    Attributes:
        deployment: Of its model.
        identities: What was hidden from its process at its start.
        loads: Whether it has begun to load, so that a request is served sooner by it than by a new process.
        claimed: Whether a request waits for it to be loaded.
        ready: True once it can be used, False if it will not be.
    """

    deployment: Deployment
    identities: object
    ready: asyncio.Future[bool]
    process: PredictorProcess | None = None
    loaded: Message = field(default_factory=dict)
    loads: bool = False
    claimed: bool = False


class HotSpares:
    """Has predictors loaded ahead of need. Used in the pool's event loop.

    Args:
        warm pool: Starts their processes, and counts their memory.
        settings: Of the pool.
        count: Counts events by name.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        warm_pool: WarmPool,
        settings: Settings,
        count: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warm_pool = warm_pool
        self._settings = settings
        self._count = count
        self._clock = clock
        self._demand = Demand()
        self.rehearsals = Rehearsals()
        #: Model -> its deployment, for models that may have hot spares.
        self._deployments: dict[str, Deployment] = {}
        #: Deployment -> key and place of the image that its predictors have opened.
        self.images: dict[DeploymentKey, list[str]] = {}
        #: Lines whose models cannot wait like this; and those that failed since their last start.
        self._unfit: set[DeploymentKey] = set()
        self._failed: set[DeploymentKey] = set()
        self._waiting: list[_HotSpare] = []
        self._making: _HotSpare | None = None
        self._background = Background("hot spares")
        self._tending = False
        self._again: asyncio.TimerHandle | None = None
        self._closing = False

    # -- requests --------------------------------------------------------------------------------------------------

    async def take(self, deployment: Deployment) -> tuple[PredictorProcess, Message] | None:
        """A process that has loaded the model, and what it said then; None if there is none. Raises nothing of its own.

        Counts as a start of a predictor of the model.
        """
        if not self._settings.hot_spares:
            return None
        self._demand.started(deployment.subject, self._clock())
        self._deployments[deployment.subject] = deployment
        self._failed.discard(deployment.key)
        while (hot := await self._next(deployment)) is not None:
            woken = await self._woken(hot)
            if woken is not None:
                assert hot.process is not None, "it is ready"
                hot.process.how = "hot"
                return hot.process, woken
        return None

    async def _next(self, deployment: Deployment) -> _HotSpare | None:
        for hot in self._waiting:
            if hot.deployment.key == deployment.key:
                self._waiting.remove(hot)
                return hot
        making = self._making
        if making is None or making.deployment.key != deployment.key or making.claimed:
            return None
        if (
            not making.loads
        ):  # a spare or a fork is sooner; it goes on, or steady requests would keep it from being made
            return None
        making.claimed = True
        return making if await asyncio.shield(making.ready) else None

    async def _woken(self, hot: _HotSpare) -> Message | None:
        """Have it take its weights again. None if it is of no use; then it is ended."""
        process = hot.process
        assert process is not None, "it is ready"
        if not hot.claimed and not self._warm_pool.unshelve(process):
            return None  # it ends already
        if process.dying or hot.identities != self._warm_pool.identities():
            process.kill("a file or folder that is hidden from it was replaced")
            return None
        try:
            wake = {"op": "wake", "deadline_s": None}  # a new predictor waits for what this one lacks
            woken = await process.ask(wake, deadline_s=self._settings.load_deadline_s)
        except TrimsError as error:  # a new predictor meets the same, and its client gets the error
            self._end(process, f"it could not wake: {error}")
            return None
        if not woken["same"]:
            self._end(process, "its model or the place of its weights has changed")
            for other in [each for each in self._waiting if each.deployment.key == hot.deployment.key]:
                self._drop(other)  # it would find the same
            return None
        stages = {**woken["stages"], "load_s": 0.0}
        return {**hot.loaded, "place": woken["place"], "warm": woken["warm"], "stages": stages}

    def _end(self, process: PredictorProcess, why: str) -> None:
        _log.info("a hot spare (process %d) is not used: %s", process.pid, why)
        self._count("hot_unused")
        self._background.start(process.end())

    # -- what there is to know -------------------------------------------------------------------------------------

    def loaded(self, deployment: Deployment, answer: Message) -> None:
        """A predictor of the model has loaded it: hot spares open the same image."""
        image = answer.get("image")
        if isinstance(image, list) and len(image) == 2 and all(isinstance(each, str) for each in image):
            self.images.pop(deployment.key, None)
            self.images[deployment.key] = image
            if len(self.images) > _MOST_IMAGES:  # of models that were registered again and again
                del self.images[next(iter(self.images))]

    def ran(self, deployment: Deployment, answer: Message, run_s: float) -> None:
        """A predictor of the model has answered, which took `run_s` seconds."""
        self.rehearsals.ran(deployment.key, answer, run_s)

    def want(self, deployment: Deployment) -> None:
        """Have hot spares of a model whose manifest states their number, also before its first request."""
        wanted = deployment.hot and self._settings.hot_spares
        if wanted and deployment.key not in self._failed and not self._closing:
            self._deployments[deployment.subject] = deployment
            self._warm_pool.keep(deployment.environment)
            self.tend()

    def retire(self, key: DeploymentKey) -> None:
        """End the hot spares of a model that was changed, unloaded or removed. Its next request may have more made."""
        for model, deployment in list(self._deployments.items()):
            if deployment.key == key:
                del self._deployments[model]
        self.rehearsals.forget(key)
        self._unfit.discard(key)
        self._failed.discard(key)
        if self._making is not None and self._making.deployment.key == key:
            self._give_up(self._making, "its model was changed or unloaded")
        for hot in [each for each in self._waiting if each.deployment.key == key]:
            self._drop(hot)

    def report(self) -> dict[str, int]:
        """Return how many hot spares wait for each model."""
        found: dict[str, int] = {}
        for hot in self._waiting:
            found[hot.deployment.subject] = found.get(hot.deployment.subject, 0) + 1
        return found

    # -- making them -----------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Make and end some, in the background, when no request is in the way. Called when a model has answered."""
        if self._deployments and not self._tending and not self._closing:
            self._tending = True
            self._background.start(self._tend())

    async def _tend(self) -> None:
        try:
            while True:
                await self._warm_pool.calm()
                wanted = self._wanted()
                self._end_surplus(wanted)
                deployment = self._missing(wanted)
                if deployment is None:
                    return
                await self._make(deployment)
        finally:
            self._tending = False
            if self._again is not None:
                self._again.cancel()
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(_LOOK_S, self.tend) if self._waiting and not self._closing else None

    def _wanted(self) -> dict[str, int]:
        stated = {model: deployment.hot for model, deployment in self._deployments.items()}
        return self._demand.choose(stated, self._settings.hot_spares, self._clock())

    def _end_surplus(self, wanted: dict[str, int]) -> None:
        left = dict(wanted)
        for hot in list(self._waiting):
            left[hot.deployment.subject] = left.get(hot.deployment.subject, 0) - 1
            if left[hot.deployment.subject] < 0:
                self._drop(hot)

    def _missing(self, wanted: dict[str, int]) -> Deployment | None:
        """The deployment of a model that has fewer than wanted, and for which one more can be made now."""
        there = self.report()
        for model, number in wanted.items():
            deployment = self._deployments[model]
            barred = deployment.key in self._unfit or deployment.key in self._failed
            known = bool(deployment.hot) or deployment.key in self.images
            # On a device there are spares of another kind (`device_spares`): a mapping there cannot be parked.
            barred = barred or is_device(self.images.get(deployment.key, ("", deployment.home))[1])
            may = there.get(model, 0) < number and known and not barred
            if may and self._warm_pool.has_room_for_hot(deployment.environment):
                return deployment
        return None

    async def _make(self, deployment: Deployment) -> None:
        hot = _HotSpare(deployment, self._warm_pool.identities(), asyncio.get_running_loop().create_future())
        self._making = hot
        try:
            await self._load(hot)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - without it, requests have other predictors
            self._note(hot, error)
            if hot.process is not None:
                hot.process.kill("it was to be a hot spare, and could not be loaded")
        finally:
            self._making = None
            if not hot.ready.done():
                hot.ready.set_result(False)

    async def _load(self, hot: _HotSpare) -> None:
        deployment, settings = hot.deployment, self._settings
        hot.process = process = await self._warm_pool.make(deployment.environment)
        await self._warm_pool.calm()
        if hot.ready.done():  # given up meanwhile
            process.kill("it is not needed any more")
            return
        hot.loads = True
        message = {**load_message(deployment, settings.most_predictor_bytes), "image": self.images.get(deployment.key)}
        hot.loaded = await process.ask(message, deadline_s=settings.load_deadline_s)
        self.loaded(deployment, hot.loaded)
        if not hot.claimed and not await self._rehearsed(hot, process):
            return
        if not hot.claimed:
            await process.ask({"op": "park"}, deadline_s=_PARK_S)
        if hot.ready.done() or process.dying:
            process.kill("it is not needed any more")
            return
        if not hot.claimed:
            self._warm_pool.shelve(process)
            process.going.add_done_callback(lambda _: self._gone(hot))
            self._waiting.append(hot)
        hot.ready.set_result(True)

    async def _rehearsed(self, hot: _HotSpare, process: PredictorProcess) -> bool:
        """Have it do what a first run does. False if it failed in that: it is ended, and the next one does without."""
        key = hot.deployment.key
        given = self.rehearsals.of(key)
        if given is None:
            return True
        stated = hot.deployment.run_deadline_s
        deadline_s = self._settings.run_deadline_s if stated is None else stated
        try:
            await process.ask({"op": "rehearse", "given": given}, deadline_s=deadline_s)
        except TrimsError as error:
            if not hot.ready.done():
                self.rehearsals.refuse(key)
                _log.warning("hot spares of %s run nothing before their first request: %s", hot.deployment.model, error)
            process.kill("its rehearsal failed")
            return False
        return True

    def _note(self, hot: _HotSpare, error: Exception) -> None:
        if hot.ready.done():  # it was given up, and its process killed
            return
        key, why = hot.deployment.key, str(error)
        self._failed.add(key)
        if getattr(error, "code", "") == "not_supported" or not isinstance(error, TrimsError | OSError):
            self._unfit.add(key)
        if isinstance(error, ModelNotFoundError):  # its weights were evicted: a request has them loaded again
            _log.debug("no hot spare of %s: %s", hot.deployment.model, why)
        else:
            _log.warning("no hot spare of %s: %s", hot.deployment.model, why)

    def _give_up(self, hot: _HotSpare, why: str) -> None:
        if not hot.ready.done():
            hot.ready.set_result(False)
        if hot.process is not None:
            hot.process.kill(why)

    def _drop(self, hot: _HotSpare) -> None:
        self._waiting.remove(hot)
        if hot.process is not None and self._warm_pool.unshelve(hot.process):
            self._background.start(hot.process.end())

    def _gone(self, hot: _HotSpare) -> None:
        """Note that the process of a hot spare ends: by itself, for its memory, or because it was used."""
        if hot in self._waiting:
            self._waiting.remove(hot)
            self._failed.add(
                hot.deployment.key
            )  # until the next request that needs a predictor: it may do so each time
            _log.info("a hot spare of %s ended while it waited", hot.deployment.model)
            if hot.process is not None:
                hot.process.ended.add_done_callback(lambda ended: self._note_end(hot.deployment, ended.result()))

    def _note_end(self, deployment: Deployment, why: str) -> None:
        """A class that reads its weights while they are parked dies of it each time: no more are made of its model."""
        if any(signal in why for signal in _OF_READING):
            self._unfit.add(deployment.key)
            _log.warning(
                "a hot spare of %s read its weights while it waited (%s), so no more are made; a class that does so "
                "between `load` and `predict` states `hot: 0`",
                deployment.model, why,
            )  # fmt: skip

    # -- the end ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Make no more. Their processes are the warm pool's to end."""
        self._closing = True
        if self._again is not None:
            self._again.cancel()
        self._background.cancel()
        await self._background.wait()
