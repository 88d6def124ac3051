"""The nursery: a template for each framework and environment, and spare predictors forked from it.

A *spare* is forked before it is needed: it is connected to the daemon, and its threads run. A request for a model that
has no predictor takes the spare, so it waits neither for a fork nor for a framework's first steps.

Templates learn: what a predictor had to import for its model is imported by the next template, which takes the place of
the last once it may be forked (see `gate`). Until then the last one serves, so modules that are slow, hang or spoil a
template cost no request its time; they are not asked for again.

Where a template may not be forked, the predictor is spawned as a program of its own, and the template is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from trims.core.errors import BadMessageError, DrainingError, LostPeerError, PredictorError
from trims_predictors.processes import PredictorProcess, spawn
from trims_predictors.templates import Template

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trims_predictors.launching import Environment, Launcher

_log = logging.getLogger(__name__)
_PREPARE_S = 30.0
#: Between SIGKILL and the end of a process, which may take a while if it has much memory.
_BURIAL_S = 10.0
#: Between two looks whether requests are answered, and until they are not waited for any more.
_CALM_S, _LONGEST_CALM_S = 0.05, 2.0
#: Rounds of learning of one template.
_MOST_LESSONS = 32


class Nursery:
    """Has predictors ready for each environment.

    Args:
        launcher: Starts templates.
        spares: How many predictors each template has ready.
        threads: What a spare warms up with.
        busy: Whether requests are being answered. Spares and lessons, which compute for a while, wait until none is.
    """

    def __init__(self, launcher: Launcher, *, spares: int, threads: int, busy: Callable[[], bool]) -> None:
        self._launcher = launcher
        self._busy = busy
        self._most_spares = spares
        self._threads = threads
        self._templates: dict[Environment, Template] = {}
        self._spares: dict[Environment, list[PredictorProcess]] = {}
        self._learned: dict[Environment, list[str]] = {}
        #: Modules that cannot be imported in a template.
        self._banned: dict[Environment, set[str]] = {}
        #: Environments for which a template learns.
        self._teaching: set[Environment] = set()
        self._lessons: dict[Environment, int] = {}
        self._retired: list[Template] = []
        #: All that have not been seen to end, and by framework how many were started.
        self._made: list[tuple[str, Template]] = []
        self._started: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tending: set[Environment] = set()
        #: All processes that were taken or are spares, until each has ended.
        self._living: set[PredictorProcess] = set()
        self._closing = False

    async def take(self, environment: Environment) -> PredictorProcess:
        """A predictor's process that has loaded nothing yet.

        Raises PredictorError if none can be started, DrainingError if the nursery is closing.
        """
        spares = self._spares.get(environment, [])
        while spares:
            spare = spares.pop()
            if not spare.dying:
                spare.how = "spare"
                return spare
        try:
            return await self._fork(environment)
        except (PredictorError, LostPeerError, BadMessageError) as error:
            self._check_open()
            _log.warning("a predictor for %s is spawned, not forked: %s", environment.framework, error)
            self._discard(environment)
            return self._watch(spawn(self._launcher, environment))

    def spares(self) -> dict[str, int]:
        """How many spares each framework has."""
        found: dict[str, int] = {}
        for environment, spares in self._spares.items():  # of several versions, each in an environment of its own
            found[environment.framework] = found.get(environment.framework, 0) + len(spares)
        return found

    def templates(self) -> dict[str, dict[str, int]]:
        """How many templates of each framework were started, and how many of them have ended."""
        living = [framework for framework, template in self._made if template.lost is None]
        return {
            framework: {"started": started, "ended": started - living.count(framework)}
            for framework, started in self._started.items()
        }

    def learning(self) -> list[str]:
        """Frameworks for which a template learns just now."""
        return sorted({environment.framework for environment in self._teaching})

    def tend(self, environment: Environment) -> None:
        """Make spares again, in the background. Called when a model has answered, so that nothing is in its way."""
        if environment not in self._tending:
            self._tending.add(environment)
            self._background(self._tend(environment))

    def teach(self, environment: Environment, modules: Sequence[str]) -> None:
        """Tell what a predictor had to import; the template imports it, too, and its spares are replaced."""
        template = self._templates.get(environment)
        if template is None or template.lost is not None or environment in self._teaching:
            return  # the next predictor that lacks them tells it again
        known = template.modules | self._banned.get(environment, set())
        new = [name for name in modules if name not in known and "__main__" not in name]
        lessons = self._lessons.get(environment, 0)
        if new and lessons < _MOST_LESSONS:
            self._lessons[environment] = lessons + 1
            self._teaching.add(environment)
            self._background(self._teach(environment, new))

    async def _fork(self, environment: Environment) -> PredictorProcess:
        self._check_open()
        return self._watch(await self._template(environment).fork())

    def _check_open(self) -> None:
        if self._closing:
            raise DrainingError("the endpoint is ending and starts no predictors")

    def _watch(self, process: PredictorProcess) -> PredictorProcess:
        self._living.add(process)
        process.ended.add_done_callback(lambda _: self._living.discard(process))
        if self._closing:
            process.kill("the endpoint ended")
        return process

    def _template(self, environment: Environment) -> Template:
        template = self._templates.get(environment)
        if template is None or template.lost is not None:
            modules = [*environment.modules(), *self._learned.get(environment, [])]
            template = self._templates[environment] = self._make(environment, modules)
        return template

    def _make(self, environment: Environment, modules: Sequence[str]) -> Template:
        template = Template(self._launcher, environment, modules)
        framework = environment.framework
        self._started[framework] = self._started.get(framework, 0) + 1
        self._made = [each for each in (*self._made, (framework, template)) if each[1].lost is None]
        return template

    def _discard(self, environment: Environment) -> None:
        template = self._templates.pop(environment, None)
        if template is not None:
            template.close("it could not be forked")

    async def _teach(self, environment: Environment, modules: list[str]) -> None:
        """Make a template that has imported these, too, and put it in the place of the last one."""
        try:
            await self._calm()
            learned = [*self._learned.get(environment, []), *modules]
            template = self._make(environment, [*environment.modules(), *learned])
            try:
                await asyncio.shield(template.ready)
            except LostPeerError as error:
                template.spoilt = str(error)
            except asyncio.CancelledError:
                template.close("the endpoint ends")
                raise
        finally:
            self._teaching.discard(environment)
        if template.spoilt is not None:
            _log.warning(
                "a template for %s cannot learn this; its predictors will import it themselves: %s (%s)",
                environment.framework, ", ".join(modules[:20]), template.spoilt,
            )  # fmt: skip
            self._banned.setdefault(environment, set()).update(modules)
            template.close("it was spoilt")
            return
        self._learned[environment] = [each for each in learned if each not in template.failed]
        self._banned.setdefault(environment, set()).update(template.failed)
        before, self._templates[environment] = self._templates.get(environment), template
        if before is not None:
            before.retire()
            self._retired = [each for each in (*self._retired, before) if each.lost is None]
        for spare in self._spares.pop(environment, []):  # they lack it
            await spare.end()
        self.tend(environment)

    async def _tend(self, environment: Environment) -> None:
        try:
            await self._calm()
            while len(self._spares.get(environment, ())) < self._most_spares:
                spare = await self._fork(environment)
                await spare.ask(
                    {"op": "prepare", "modules": environment.modules(), "threads": self._threads}, deadline_s=_PREPARE_S
                )
                self._spares.setdefault(environment, []).append(spare)
        except Exception as error:  # noqa: BLE001 - without a spare, the next predictor is forked or spawned
            _log.warning("no spare predictor for %s: %s", environment.framework, error)
        finally:
            self._tending.discard(environment)

    async def _calm(self) -> None:
        """Wait until no request is answered, but not for ever."""
        until = time.monotonic() + _LONGEST_CALM_S
        while self._busy() and time.monotonic() < until:
            await asyncio.sleep(_CALM_S)

    def _background(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all predictors and templates; none is left afterwards."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end_all()  # before their templates, which alone learn how they end
        for template in [*self._templates.values(), *self._retired]:
            template.close()
        await self._end_all()  # what was forked meanwhile

    async def _end_all(self) -> None:
        living = list(self._living)
        for process in living:
            process.kill("the endpoint ended")
        if living:
            _, remaining = await asyncio.wait([process.ended for process in living], timeout=_BURIAL_S)
            for process in living:
                if process.ended in remaining:
                    _log.error("predictor process %d has not ended %g s after SIGKILL", process.pid, _BURIAL_S)
                    process.abandon()
