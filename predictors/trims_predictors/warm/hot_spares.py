"""Hot spares: predictors that have loaded a model in steady demand, and wait for its next request.

A hot spare is a process that has never seen a request. It has opened the weights and made the model ready, so a request
that finds no predictor of the model takes it and only has to run, for the second time if its predictor can rehearse
(`rehearsals`). It is used up by that, and another one is made in the background. While it waits it holds neither a
lease nor the memory of the weights (`trims_client.mapping.suspended`). At its use it opens the model by name. If that
stands for other weights by now, or they lie elsewhere, the hot spare ends, and the request has a predictor as if there
had been none.

Which models have some is decided by `Demand`. One is made only of weights that are resident, and only if there is
room for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.errors import TrimsError
from trims_predictors.deployment.deployment import is_device, load_message
from trims_predictors.warm.spares import Rehearsals, Spare, Spares, remember

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trims.wire.frames import Message
    from trims_predictors.children.worker_process import PredictorProcess
    from trims_predictors.deployment.deployment import Deployment, Settings
    from trims_predictors.deployment.key import DeploymentKey
    from trims_predictors.warm.warm_pool import WarmPool

_log = logging.getLogger(__name__)
#: Seconds for the daemon and the process together, to give a lease back.
_PARK_S = 10.0
#: Seconds between two looks whether models have cooled.
_LOOK_S = 10.0
#: Signals that end a process which has read what is parked.
_OF_READING = ("SIGSEGV", "SIGBUS")
#: Demand for new predictors: each start of a predictor counts one, and each count halves in so many seconds.
HALF_LIFE_S = 120.0
#: Counts at which a model becomes hot (three starts within about two minutes), below which it cools, and at most.
ENTER, STAY, MOST = 2.9, 1.0, 8.0
#: Factor by which another model's count has to be larger to take a hot model's place.
_ADVANTAGE = 2.0
#: Below this a model counts as never seen.
_NOTHING = 0.01


class Demand:
    """Counts the starts of predictors by model, and chooses which models are hot; the caller brings the clock.

    Models whose requests come a little apart stay in, because `STAY` is below `ENTER`. Each cools within `HALF_LIFE_S`
    times log2 of `MOST` seconds after its last start. Where more are hot than there is room for, one that is in keeps
    its place until another one's count is twice as large.
    """

    def __init__(self) -> None:
        #: Model -> its count, and when that was right.
        self._counts: dict[str, tuple[float, float]] = {}
        self._hot: frozenset[str] = frozenset()

    def started(self, model: str, now_s: float) -> None:
        """A request needed a new predictor of the model."""
        self._counts[model] = (min(self.count(model, now_s) + 1.0, MOST), now_s)

    def count(self, model: str, now_s: float) -> float:
        """Starts of late, each worth half after `HALF_LIFE_S`."""
        count, at_s = self._counts.get(model, (0.0, now_s))
        return count * math.pow(0.5, max(0.0, now_s - at_s) / HALF_LIFE_S)

    def choose(self, stated: Mapping[str, int | None], most: int, now_s: float) -> dict[str, int]:
        """Return how many hot spares each model shall have; models without any are left out.

        Args:
            stated: Models that may have some -> how many their manifests state; None for by demand.
            most: Bound of all together. Stated ones come first: one for each model, then the rest.
            now_s: Moment on the clock of `started`.
        """
        self._counts = {model: at for model, at in self._counts.items() if self.count(model, now_s) > _NOTHING}
        chosen = _shared_out({model: number for model, number in stated.items() if number}, most)
        found = [model for model, number in stated.items() if number is None and self._is_hot(model, now_s)]
        found.sort(key=lambda model: (-self._weight(model, now_s), model))
        hot = found[: max(0, most - sum(chosen.values()))]
        self._hot = frozenset(hot)
        return {**chosen, **dict.fromkeys(hot, 1)}

    def _is_hot(self, model: str, now_s: float) -> bool:
        return self.count(model, now_s) >= (STAY if model in self._hot else ENTER)

    def _weight(self, model: str, now_s: float) -> float:
        return self.count(model, now_s) * (_ADVANTAGE if model in self._hot else 1.0)


def _shared_out(wanted: Mapping[str, int], most: int) -> dict[str, int]:
    """Share out `most` hot spares: one for each model by name, then the rest by name."""
    chosen = dict.fromkeys(sorted(wanted)[:most], 1)
    for model in chosen:
        chosen[model] += min(wanted[model] - 1, most - sum(chosen.values()))
    return chosen


@dataclass(eq=False)
class _HotSpare(Spare):
    """Spare that has loaded a model.

    Attributes:
        ready: Outcome: whether it can be used.
        loaded: Answer of its process when it had loaded the model.
    """

    ready: asyncio.Future[bool]
    loaded: Message = field(default_factory=dict)


class HotSpares(Spares[_HotSpare]):
    """Has predictors loaded ahead of need.

    Args:
        warm_pool: Starts their processes, and counts their memory.
        count: Counts events by name.
    """

    def __init__(
        self,
        warm_pool: WarmPool,
        settings: Settings,
        count: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        #: Model -> its deployment, for models that may have hot spares.
        self._deployments: dict[str, Deployment] = {}
        super().__init__(warm_pool, settings, _LOOK_S, self._deployments)
        self._count = count
        self._clock = clock
        self._demand = Demand()
        self.rehearsals = Rehearsals()
        #: Deployment -> key and place of the image that its predictors have opened.
        self.images: dict[DeploymentKey, list[str]] = {}
        #: Deployments whose models cannot wait like this.
        self._unfit: set[DeploymentKey] = set()
        #: The spare that is loading, by which a request is served sooner than by a new process.
        self._loading: _HotSpare | None = None

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
            process = self._released(hot)
            if process is not None and (woken := await self._woken(hot, process)) is not None:
                process.how = "hot"
                return process, woken
        return None

    async def _next(self, deployment: Deployment) -> _HotSpare | None:
        for hot in self._waiting:
            if hot.key == deployment.key:
                self._waiting.remove(hot)
                return hot
        loading = self._loading
        if loading is None or loading.key != deployment.key or loading.claimed:
            return None
        loading.claimed = True
        return loading if await asyncio.shield(loading.ready) else None

    async def _woken(self, hot: _HotSpare, process: PredictorProcess) -> Message | None:
        """Have it take its weights again. None if it is of no use; then it is ended."""
        try:
            wake = {"op": "wake", "deadline_s": None}  # a new predictor waits for what this one lacks
            woken = await process.ask(wake, deadline_s=self._settings.load_deadline_s)
        except TrimsError as error:  # a new predictor meets the same, and its client gets the error
            self._unused(hot, f"it could not wake: {error}")
            return None
        if not woken["same"]:
            self._unused(hot, "its model or the place of its weights has changed")
            self._drop_all(hot.deployment.key, "another one has found its model changed")
            return None
        stages = {**woken["stages"], "load_s": 0.0}
        return {**hot.loaded, "place": woken["place"], "warm": woken["warm"], "stages": stages}

    def _unused(self, hot: _HotSpare, why: str) -> None:
        _log.info("a %s (process %d) is not used: %s", hot.called, hot.process.pid, why)
        self._count("hot_unused")
        self._end(hot, why)

    def _drop_all(self, key: DeploymentKey, why: str) -> None:
        for hot in [each for each in self._waiting if each.key == key]:
            self._drop(hot, why)

    # -- what there is to know -------------------------------------------------------------------------------------

    def loaded(self, deployment: Deployment, answer: Message) -> None:
        """A predictor of the model has loaded it: hot spares open the same image."""
        image = answer.get("image")
        if isinstance(image, list) and len(image) == 2 and all(isinstance(each, str) for each in image):
            remember(self.images, deployment.key, image)

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
        if self._loading is not None and self._loading.key == key:
            self._loading.process.kill("its model was changed or unloaded")
        self._drop_all(key, "its model was changed or unloaded")

    def report(self) -> dict[str, int]:
        """Return how many hot spares wait for each model."""
        found: dict[str, int] = {}
        for hot in self._waiting:
            found[hot.deployment.subject] = found.get(hot.deployment.subject, 0) + 1
        return found

    # -- making them -----------------------------------------------------------------------------------------------

    async def _choose(self) -> _HotSpare | None:
        stated = {model: deployment.hot for model, deployment in self._deployments.items()}
        wanted = self._demand.choose(stated, self._settings.hot_spares, self._clock())
        left = dict(wanted)
        for hot in list(self._waiting):
            left[hot.deployment.subject] = left.get(hot.deployment.subject, 0) - 1
            if left[hot.deployment.subject] < 0:
                self._drop(hot, "its model is in demand no more")
        deployment = self._missing(wanted)
        if deployment is None:
            return None
        ready, called = asyncio.get_running_loop().create_future(), f"hot spare of {deployment.model}"
        return _HotSpare(deployment.key, called, deployment, self._warm_pool.identities(), ready)

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

    async def _prepare(self, spare: _HotSpare) -> bool:
        self._loading = spare
        try:
            return await self._load(spare, spare.process)
        finally:
            self._loading = None
            if not spare.ready.done():
                spare.ready.set_result(False)

    def _is_wanted(self, spare: _HotSpare) -> bool:
        """Return whether its model was neither changed nor unloaded since it was begun."""
        known = self._deployments.get(spare.deployment.subject)
        return known is not None and known.key == spare.key

    async def _load(self, spare: _HotSpare, process: PredictorProcess) -> bool:
        deployment, settings = spare.deployment, self._settings
        message = {**load_message(deployment, settings.most_predictor_bytes), "image": self.images.get(deployment.key)}
        spare.loaded = await process.ask(message, deadline_s=settings.load_deadline_s)
        self.loaded(deployment, spare.loaded)
        if not spare.claimed and not await self._rehearsed(spare, process):
            return False
        if not spare.claimed:
            await process.ask({"op": "park"}, deadline_s=_PARK_S)
        if process.dying or not self._is_wanted(spare):
            process.kill("it is not needed any more")
            return False
        if spare.claimed:
            spare.ready.set_result(True)
        return not spare.claimed

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
            if self._is_wanted(hot):
                self.rehearsals.refuse(key)
                _log.warning("hot spares of %s run nothing before their first request: %s", hot.deployment.model, error)
            process.kill("its rehearsal failed")
            return False
        return True

    def _note(self, spare: _HotSpare, error: Exception) -> None:
        if not self._is_wanted(spare):  # its process was killed
            return
        if getattr(error, "code", "") == "not_supported" or not isinstance(error, TrimsError | OSError):
            self._unfit.add(spare.deployment.key)
        super()._note(spare, error)

    def _end(self, spare: _HotSpare, why: str) -> None:
        """Have a process unload its model and end: nothing waits for what it holds."""
        del why
        self._background.start(spare.process.end())

    def _gone(self, spare: _HotSpare) -> None:
        if spare in self._waiting:
            spare.process.ended.add_done_callback(lambda ended: self._note_end(spare, ended.result()))
        super()._gone(spare)

    def _note_end(self, spare: _HotSpare, how: str) -> None:
        """Make no more spares of a model whose class reads its weights while they are parked: it dies each time."""
        if any(signal in how for signal in _OF_READING):
            self._unfit.add(spare.deployment.key)
            _log.warning(
                "a %s read its weights while it waited (%s), so no more are made; a class that does so between `load` "
                "and `predict` states `hot: 0`",
                spare.called, how,
            )  # fmt: skip
