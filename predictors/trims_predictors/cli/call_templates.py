"""Templates of one `trims call`: the next one has imported what the process of the last cold invocation had to import.

The endpoint's templates learn the same way (`preload_learner`). What is learned is kept in the daemon's state folder,
in a file beside the endpoint's, so that a later command begins with it and an endpoint's file loses none of it.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from trims.core.errors import LostPeerError
from trims_predictors.children.template_process import Template
from trims_predictors.children.worker_process import spawn
from trims_predictors.warm.preload_learner import read_learned, write_learned

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trims_predictors.children.launcher import Environment, Launcher
    from trims_predictors.children.worker_process import PredictorProcess

#: Files with the learned modules of the endpoint and of this command, in the state folder.
_OF_ENDPOINT, _OF_CALLS = "learned.json", "learned-by-calls.json"
#: Seconds between the end of a template and that of its process.
_BURIAL_S = 10.0


class CallTemplates:
    """The template that cold invocations are forked from, and the next one, which has learned.

    Args:
        preload: Modules to import beside the framework.
        state_dir: Folder of the daemon; what was learned is kept there if this process may write to it.

    Attributes:
        started_s: Seconds that the first template took to start and to import.
        knew: Modules that earlier commands, or the endpoint, had learned and the first template has imported.
        forgot: Why these were left out; None if they were not.
    """

    serving: Template

    def __init__(self, launcher: Launcher, environment: Environment, preload: Sequence[str], state_dir: Path) -> None:
        self._launcher = launcher
        self._environment = environment
        self._preload = list(preload)
        self._made: list[Template] = []
        self._file = state_dir / _OF_CALLS
        self._keeps = os.access(state_dir, os.W_OK)
        self._of_endpoint = state_dir / _OF_ENDPOINT
        self.started_s = 0.0
        self.knew: list[str] = []
        self.forgot: str | None = None

    async def begin(self) -> None:
        """Start the first one; without what was learned before if it cannot be forked with that.

        Raises LostPeerError if a module of the function's own ended it.
        """
        known = [
            *read_learned(self._of_endpoint).get(self._environment, []),
            *read_learned(self._file).get(self._environment, []),
        ]
        began = time.perf_counter()
        template = await self._started(known, may_fail=bool(known))
        if known and template.unfit is not None:
            self.forgot = template.unfit
            self._keep([])
            template = await self._started([], may_fail=False)
        else:
            self.knew = [name for name in dict.fromkeys(known) if name not in template.failed]
        self.started_s = time.perf_counter() - began
        self.serving = template

    async def _started(self, modules: Sequence[str], *, may_fail: bool) -> Template:
        """Return a template once it has imported; one that was lost counts as unfit if `may_fail`."""
        wanted = dict.fromkeys([*self._environment.modules(), *self._preload, *modules])
        template = Template(self._launcher, self._environment, list(wanted))
        self._made.append(template)
        try:
            await asyncio.shield(template.ready)
        except LostPeerError as error:
            if not may_fail:
                raise
            template.unfit = str(error)
        return template

    async def fork(self) -> PredictorProcess:
        """Return a new process: a fork, or a fresh Python process if the template may not be forked."""
        if self.serving.unfit is not None:
            return spawn(self._launcher, self._environment)
        return await self.serving.fork()

    def new_of(self, imported: Sequence[str], folder: str) -> list[str]:
        """Return those of a process's imports that a template could learn.

        The function's own file and what lies beside it are imported by each process: they may be edited.
        """
        known = self.serving.modules | self.serving.failed.keys()
        return [
            name
            for name in imported
            if name not in known and "__main__" not in name and not _lies_in(folder, name.partition(".")[0])
        ]

    @property
    def keeps(self) -> bool:
        """Return whether what is learned helps a later command."""
        return self._keeps

    async def learn(self, new: Sequence[str]) -> str | None:
        """Replace the template by one that has imported further modules, and keep what it has learned.

        Returns:
            Why it cannot be forked, so that the last one stays; None if it can.
        """
        template = await self._started([*self.knew, *new], may_fail=True)
        if template.unfit is not None:
            return template.unfit
        self._keep([name for name in (*self.knew, *new) if name not in template.failed])
        self.serving = template
        return None

    def _keep(self, modules: list[str]) -> None:
        if self._keeps:
            write_learned(self._file, {**read_learned(self._file), self._environment: modules})

    async def close(self) -> None:
        """End all templates, and wait until they are gone."""
        for template in self._made:
            template.end_all()
        if self._made:
            await asyncio.wait([template.gone for template in self._made], timeout=_BURIAL_S)


def _lies_in(folder: str, name: str) -> bool:
    return os.path.isfile(os.path.join(folder, f"{name}.py")) or os.path.isdir(os.path.join(folder, name))
