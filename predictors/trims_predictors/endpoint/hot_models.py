"""Looks which models state hot spares in their manifests, so that they have them before their first request."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from trims.core.errors import TrimsError
from trims.manifests.predictor import parse_predictor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trims.control import AsyncAdmin, Model
    from trims_predictors.deployment.deployment import Deployment

_log = logging.getLogger(__name__)
#: Seconds between two looks, each of which lists all models.
_EVERY_S = 5.0


class HotModels:
    """Watcher that looks for models with hot spares, again and again for as long as `run` runs.

    Args:
        daemon: Whose models.
        deployment: Gives the deployment of a model; raises TrimsError.
        forget: Called with a model that is not registered any more.
        want: Called with the deployment of each model that states hot spares.
    """

    def __init__(
        self,
        daemon: AsyncAdmin,
        deployment: Callable[[str], Awaitable[Deployment]],
        forget: Callable[[str], None],
        want: Callable[[Deployment], None],
    ) -> None:
        self._daemon = daemon
        self._deployment = deployment
        self._forget = forget
        self._want = want
        self._known: set[str] = set()

    async def run(self) -> None:
        """Look again and again until the task is cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - a look that fails is no reason to look at no model ever again
                _log.exception("models with hot spares were not looked at")
            await asyncio.sleep(_EVERY_S)

    async def look(self) -> None:
        """Look once. A daemon that is away is asked again later; a model that cannot run reports why to its clients."""
        try:
            models = await self._daemon.models()
        except TrimsError as error:
            _log.debug("models are not looked at: %s", error)
            return
        for name in self._known - {model.name for model in models}:
            self._forget(name)
        self._known = {model.name for model in models if model.is_default and _states_hot(model)}
        for name in sorted(self._known):
            try:
                self._want(await self._deployment(name))
            except TrimsError as error:
                _log.debug("no hot spare of %s: %s", name, error)


def _states_hot(model: Model) -> bool:
    try:
        return bool(parse_predictor(model.manifest.get("predictor"), model.name).hot)
    except TrimsError:  # it cannot be read, which a list of models reports
        return False
