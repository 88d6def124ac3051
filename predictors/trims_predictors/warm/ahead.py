"""Preparations for the first request of a model that was just added.

Its template is begun, which imports the framework; then a process loads the model once and ends, so that the template
learns what else the model imports. All of it is done at the lowest priority, one model after the other, and only where
templates have room in memory. A class of the user's own is not loaded ahead: it may do anything.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

from trims.core.errors import TrimsError
from trims_predictors.deployment.deployment import load_message
from trims_predictors.tasks import Background

if TYPE_CHECKING:
    from trims_predictors.deployment.deployment import Deployment, Settings
    from trims_predictors.deployment.key import DeploymentKey
    from trims_predictors.warm.warm_pool import WarmPool

_log = logging.getLogger(__name__)
#: Models that wait; of more, the oldest are left to their first requests.
_MOST_WAITING = 16
_LOWEST = 19


class Ahead:
    """Prepares for first requests. Used in the pool's event loop.

    Args:
        warm_pool: Has the templates.
    """

    def __init__(self, warm_pool: WarmPool, settings: Settings) -> None:
        self._warm_pool = warm_pool
        self._settings = settings
        self._waiting: dict[DeploymentKey, Deployment] = {}
        self._running = False
        self._background = Background("what is prepared ahead")

    def prepare(self, deployment: Deployment) -> None:
        """Prepare for the first request of a model, in the background."""
        self._waiting.pop(deployment.key, None)
        self._waiting[deployment.key] = deployment
        if len(self._waiting) > _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        if not self._running:
            self._running = True
            self._background.start(self._run())

    def report(self) -> list[str]:
        """Return the models for whose first requests something is still being prepared."""
        return [deployment.subject for deployment in self._waiting.values()]

    async def _run(self) -> None:
        try:
            while self._waiting:
                key, deployment = next(iter(self._waiting.items()))
                try:
                    await self._prepare(deployment)
                except (TrimsError, OSError) as error:  # the first request meets the same, and its client gets it
                    _log.info("%s is not prepared for its first request: %s", deployment.model, error)
                finally:
                    if self._waiting.get(key) is deployment:
                        del self._waiting[key]
        finally:
            self._running = False

    async def _prepare(self, deployment: Deployment) -> None:
        warm_pool, environment = self._warm_pool, deployment.environment
        warm_pool.preloads.want(environment, deployment.model, deployment.preload)
        if not await warm_pool.begin(environment):
            return
        imported = await self._imported(deployment) if deployment.is_loaded_ahead else []
        warm_pool.teach(environment, [*deployment.preload, *imported])
        await warm_pool.taught(environment)

    async def _imported(self, deployment: Deployment) -> list[str]:
        """Modules that the model imports, found by a process that loads it and ends."""
        await self._warm_pool.calm()
        process = await self._warm_pool.make(deployment.environment)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST)
        try:
            message = load_message(deployment, self._settings.most_predictor_bytes)
            loaded = await process.ask(message, deadline_s=self._settings.load_deadline_s)
        finally:
            await process.end()
        return [str(each) for each in loaded["imported"]]

    async def close(self) -> None:
        """Prepare no more. Processes are the warm pool's to end."""
        self._waiting.clear()
        self._background.cancel()
        await self._background.wait()
