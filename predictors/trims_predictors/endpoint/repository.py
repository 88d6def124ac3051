"""The model repository of the endpoint: orders on models, and what state each is in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from trims.core.errors import TrimsError
from trims_predictors.endpoint.load_requests import LoadRequests
from trims_predictors.endpoint.observe.overview import Overview
from trims_predictors.endpoint.principals import require_operator

if TYPE_CHECKING:
    from trims.control import AsyncAdmin, Evicted, Model, Replica
    from trims_predictors.deployment.deployment import Deployment
    from trims_predictors.deployment.deployments import Deployments
    from trims_predictors.pool.pool import WorkerPool


class Models(Protocol):
    """Models as the caller of a request may see them."""

    async def models(self) -> list[Model]:
        """Return those that the caller may open."""

    async def deployment(self, model: str) -> Deployment:
        """Return the deployment of one. Raises ModelNotFoundError, PermissionDeniedError."""

    async def is_ready(self) -> bool:
        """Return whether the daemon takes opens, and the endpoint requests."""

    def why_nothing_is_ready(self) -> str:
        """Return why no model can take requests, as it was found last; empty if models can."""


class Repository:
    """Orders on the models of a daemon.

    Args:
        pool: Ends idle predictors where an order frees weights.

    Attributes:
        overview: What the web page shows.
    """

    def __init__(self, daemon: AsyncAdmin, pool: WorkerPool, deployments: Deployments, models: Models) -> None:
        self._daemon = daemon
        self._pool = pool
        self._deployments = deployments
        self._models = models
        self._loads = LoadRequests(daemon, pool.make_way)
        self.overview = Overview(daemon, self._trouble, self._failure)

    async def index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """The model repository: READY are models that are resident, unless they could not be loaded last."""
        found = []
        models, _ = await self._models.models(), await self._models.is_ready()
        states = await asyncio.to_thread(lambda: list(map(self._state, models)))  # they look at environments
        for model, (state, reason) in zip(models, states, strict=True):
            if state == "READY" or not ready:
                found.append({"name": model.name, "version": model.version, "state": state, "reason": reason})
        return found

    def _state(self, model: Model) -> tuple[str, str]:
        if reason := self._models.why_nothing_is_ready():
            return "UNAVAILABLE", reason
        if trouble := self._trouble(model) or self._failure(model):
            return "UNAVAILABLE", trouble
        places = [replica.place for replica in model.replicas if replica.state == "sealed"]
        return ("READY", "") if places else ("UNAVAILABLE", "not loaded; the first request loads it")

    def _trouble(self, model: Model) -> str:
        """Return why nothing can run a model; empty if something can. Reads files; call it from a worker."""
        try:
            self._deployments.make(model)
        except TrimsError as error:
            return str(error)
        return ""

    def _failure(self, model: Model) -> str:
        """Return why a runnable model could not be loaded last; empty if nothing is known. For a worker, too."""
        try:
            return self._pool.failures.reason(self._deployments.make(model))
        except TrimsError:
            return ""

    async def load(self, model: str) -> None:
        """Have a model's weights in memory, and a predictor that has loaded it: so it is known whether it runs.

        What was known of it is forgotten, except for a failure, which ends only with a predictor that has loaded it.
        Raises as `LoadRequests.load` and `WorkerPool.load`.
        """
        require_operator("load models")
        deployment = await self._deployments.renew(model)
        try:
            await self._loads.load(model)
        except TrimsError as error:
            self._pool.failures.learn(deployment, error)
            raise
        finally:
            self.overview.expire()
        await self._pool.load(deployment)

    async def unload(self, model: str) -> None:
        """End a model's predictors and free its weights; those that are leased stay until the leases end."""
        require_operator("unload models")
        await self._models.deployment(model)
        self._forget_all(await self._daemon.show(model))
        await self._daemon.evict(model, drain=True)

    def _forget_all(self, shown: Model) -> None:
        """Let the idle predictors of a model end, and those of all other names of its image: they hold it as well."""
        rows = (name for replica in shown.replicas for name in replica.names)
        for reference in {f"{shown.name}@{shown.version}", *shown.aliases, *rows}:
            self._deployments.forget(reference)

    async def bring(self, model: str, place: str | None) -> Replica:
        """Have a model's weights at a place, None for its manifest's. Its predictors stay. See `LoadRequests.load`."""
        try:
            return await self._loads.load(model, place)
        finally:
            self.overview.expire()

    async def add(self, path: str, *, name: str | None, task: str | None) -> Model:
        """Register the folder of a Hugging Face model, or a file of weights, as `trims add` does."""
        try:
            return await self._daemon.add(path, name=name, task=task)
        finally:
            self.overview.expire()

    async def pin(self, model: str, place: str, *, pinned: bool) -> None:
        """Never evict a model from a place, or allow that again."""
        await (self._daemon.pin if pinned else self._daemon.unpin)(model, place)
        self.overview.expire()

    async def evict(self, model: str, place: str) -> Evicted:
        """Free a model's memory at one place, once leases have run out. Idle predictors would hold theirs: they end."""
        shown = await self._daemon.show(model)  # only a registered name: the daemon also takes beginnings of keys
        if not any(replica.pinned for replica in shown.replicas if replica.place == place):  # else it will refuse
            self._forget_all(shown)
        try:
            return await self._daemon.evict(model, place, drain=True)
        finally:
            self.overview.expire()
