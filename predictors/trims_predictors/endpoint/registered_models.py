"""Looks at models as they are registered, so that their first requests find something prepared.

Models whose manifests state hot spares have them made; the template of a model that was just added is begun. Only what
has changed is looked at: a daemon with thousands of models lists them once for each of its lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from trims.core.errors import TrimsError
from trims.manifests.predictor import parse_predictor
from trims.manifests.references import name_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from trims.control import AsyncAdmin, Model
    from trims_predictors.deployment.deployment import Deployment

_log = logging.getLogger(__name__)
#: Seconds after which all models are looked at where the daemon reports no changes, or did not answer.
_EVERY_S = 5.0
#: Changes that are remembered one by one; of more, all models are looked at.
_MOST_CHANGES = 1024


class RegisteredModels:
    """Watcher of registered models, for as long as `run` runs.

    Args:
        deployment: Gives the deployment of a model; raises TrimsError.
        forget: Called with a model that is not registered any more.
        want_hot: Called with the deployment of each model that states hot spares.
        added: Called with the deployment of each model that was registered, or changed, while this runs.
    """

    def __init__(
        self,
        daemon: AsyncAdmin,
        deployment: Callable[[str], Awaitable[Deployment]],
        forget: Callable[[str], None],
        want_hot: Callable[[Deployment], None],
        added: Callable[[Deployment], None],
    ) -> None:
        self._daemon = daemon
        self._deployment = deployment
        self._forget = forget
        self._want_hot = want_hot
        self._added = added
        self._hot: set[str] = set()
        #: All models, as they were listed last; None before.
        self._listed: set[str] | None = None
        #: Models that changed since the last look; None for all.
        self._changed: dict[str, None] | None = None
        self._news = asyncio.Event()

    def note(self, names: Iterable[str] | None) -> None:
        """Note that models changed; None for all."""
        if names is None:
            self._changed = None
        elif self._changed is not None:
            self._changed.update(dict.fromkeys(map(name_of, names)))
            if len(self._changed) > _MOST_CHANGES:
                self._changed = None
        self._news.set()

    async def run(self, is_watched: Callable[[], bool] = lambda: True) -> None:
        """Look whenever something changed, until the task is cancelled.

        Args:
            is_watched: Whether changes are reported. While they are not, all models are looked at every few seconds.
        """
        while True:
            try:
                complete = await self.look()
            except Exception:  # noqa: BLE001 - a look that fails is no reason to look at no model ever again
                _log.exception("registered models were not looked at")
                complete = False
            watched = complete and is_watched()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), None if watched else _EVERY_S)
            if not watched:
                self._changed = None

    async def look(self) -> bool:
        """Look at what changed. False if the daemon is away; a model that cannot run reports why to its clients."""
        self._news.clear()
        changed, self._changed = self._changed, {}
        if changed is None:
            return await self._look_at_all()
        for name in changed:
            if self._listed is not None:
                self._listed.add(name)
            deployment = await self._deployed(name)
            if deployment is not None and deployment.hot:
                self._hot.add(name)
                self._want_hot(deployment)
            elif name in self._hot:
                self._hot.discard(name)
                self._forget(name)
            if deployment is not None:
                self._added(deployment)
        return True

    async def _look_at_all(self) -> bool:
        try:
            models = await self._daemon.models()
        except TrimsError as error:
            _log.debug("models are not looked at: %s", error)
            return False
        names = {model.name for model in models}
        for name in self._hot - names:
            self._forget(name)
        added = set() if self._listed is None else names - self._listed
        self._listed = names
        self._hot = {model.name for model in models if model.is_default and _states_hot(model)}
        for name in sorted(self._hot | added):
            deployment = await self._deployed(name)
            if deployment is not None and name in self._hot:
                self._want_hot(deployment)
            if deployment is not None and name in added:
                self._added(deployment)
        return True

    async def _deployed(self, name: str) -> Deployment | None:
        try:
            return await self._deployment(name)
        except TrimsError as error:
            _log.debug("nothing is prepared for %s: %s", name, error)
            return None


def _states_hot(model: Model) -> bool:
    try:
        return bool(parse_predictor(model.manifest.get("predictor"), model.name).hot)
    except TrimsError:  # it cannot be read, which a list of models reports
        return False
