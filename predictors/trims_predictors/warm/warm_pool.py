"""The warm pool: a template for each framework and environment, and spare predictors forked from it.

A *spare* is forked before it is needed: it is connected to the daemon, and its threads run. A request for a model that
has no predictor takes the spare, so it waits neither for a fork nor for a framework's first steps.

Templates learn what predictors had to import (`preload_learner`). Until the next one may be forked the last one serves,
so modules that are slow, hang or make a template unfit cost no request its time.

Where a template may not be forked, the predictor is spawned as a program of its own, and the template is replaced.
Where none can be, the spares are such programs, too: they have imported what a template would have.

Templates go when they are not used, or when their memory is needed (`reclaim_policy`, `reclaimer`); the next request
that needs one starts it again. An environment in which nothing runs any more may be removed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from trims.core.errors import BadMessageError, DrainingError, LostPeerError, PredictorError, TrimsError
from trims_predictors.children.template_process import Template
from trims_predictors.children.worker_process import PredictorProcess, spawn
from trims_predictors.ipc.os_errors import as_trims_errors
from trims_predictors.tasks import Background
from trims_predictors.warm.inventory import Inventory
from trims_predictors.warm.preload_learner import PreloadLearner
from trims_predictors.warm.reclaim_policy import Limits, Way
from trims_predictors.warm.reclaimer import Reclaimer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trims_predictors.children.launcher import Environment, Launcher
    from trims_predictors.warm.reclaim_policy import Step

_log = logging.getLogger(__name__)
_PREPARE_S = 30.0
#: Seconds to prepare a program of its own, which imports its framework first.
_IMPORT_S = 120.0
#: Seconds between SIGKILL and the end of a process, which may take a while if it has much memory.
_BURIAL_S = 10.0
#: Seconds between SIGKILL and the end of templates, and of the guards round them.
_GONE_S = 10.0
#: Environments whose templates are begun when an endpoint starts.
_MOST_RECENT = 4
#: Seconds between two looks whether requests are answered, and until they are not waited for any more.
_CALM_S, _LONGEST_CALM_S = 0.05, 2.0


class WarmPool:
    """Has predictors ready for each environment.

    Args:
        spares: How many predictors each template has ready.
        threads: What a spare warms up with.
        busy: Whether requests are being answered. Spares and templates that learn wait until none is.
        limits: What templates may cost.
        learned: File that keeps what templates have learned to import; None for none.
    """

    def __init__(
        self,
        launcher: Launcher,
        *,
        spares: int,
        threads: int,
        busy: Callable[[], bool],
        limits: Limits | None = None,
        learned: Path | None = None,
    ) -> None:
        self._launcher = launcher
        self._busy = busy
        self._most_spares = spares
        self._threads = threads
        self._inventory = Inventory()
        self._background = Background("the warm pool", self._explained)
        make = partial(self._make_template, gives_way=True)
        self._learner = PreloadLearner(make, self._serve, self.calm, self._background, learned)
        #: Modules that cannot be imported in a template, and who asks for them.
        self.preloads = self._learner.preloads
        self._tending: set[Environment] = set()
        #: Processes that were taken or are spares, until each has ended.
        self._living: dict[PredictorProcess, Environment] = {}
        self._reclaimer = Reclaimer(self._inventory, limits or Limits(), self.calm, self._carry_out)
        self._keeping = False
        self._closing = False

    async def take(self, environment: Environment) -> PredictorProcess:
        """A predictor's process that has loaded nothing yet.

        Raises PredictorError if none can be started, CapacityError if descriptors or processes lack for it,
        DrainingError if the warm pool is closing.
        """
        self._use(environment)
        process = await self._take(environment)
        process.ended.add_done_callback(lambda _: self._use(environment))
        return process

    async def _take(self, environment: Environment) -> PredictorProcess:
        self._leave_what_sees_too_much(environment)
        spare = self._inventory.take_spare(environment)
        if spare is None:
            return await self._new(environment)
        spare.how = "spare"
        return spare

    async def _new(self, environment: Environment) -> PredictorProcess:
        """A fork of a template, or a program of its own where none can be forked."""
        if self._learner.may_fork(environment):
            try:
                return await self._forked(environment)
            except (PredictorError, LostPeerError, BadMessageError) as error:
                self._check_open()
                _log.warning("a predictor for %s is spawned, not forked: %s", environment.framework, error)
        return self._watch(spawn(self._launcher, environment), environment)

    def _leave_what_sees_too_much(self, environment: Environment) -> None:
        """Use a template and its spares no more if something that is hidden from them was replaced meanwhile."""
        template = self._inventory.serving(environment)
        if template is None or template.identities == self._launcher.identities():
            return
        why = "a file or folder that is hidden from it was replaced"
        _log.info("a template of %s is used no more: %s", environment.framework, why)
        del self._inventory.templates[environment]
        template.retire()
        for spare in self._inventory.spares.pop(environment, []):
            spare.kill(why)

    def spares(self) -> dict[str, int]:
        """Return how many spares each framework has."""
        return self._inventory.spares_by_framework()

    def templates(self) -> dict[str, dict[str, int]]:
        """Return by framework: templates that were started, those that have ended, and bytes of the others with spares.

        The bytes are those of the last count, a second ago or longer if nothing has changed since.
        """
        return self._inventory.templates_by_framework(self._reclaimer.counted)

    def learning(self) -> list[str]:
        """Frameworks for which a template learns just now."""
        return sorted({environment.framework for environment in self._learner.running()})

    def keep(self, environment: Environment) -> None:
        """Have a template and its spares ready from now on, also without use."""
        self._inventory.kept.add(environment)
        self.tend(environment)

    async def begin(self, environment: Environment) -> bool:
        """Have a template and its spares before a request needs them, at the lowest priority.

        False if there is none: templates have no room in memory for it, or it cannot be forked.
        """
        template = self._inventory.serving(environment)
        if template is None:
            if (
                self._closing
                or not self._learner.may_fork(environment)
                or not self._has_room(self._inventory.bytes_of_template(environment))
            ):
                return False
            template = self._make_template(environment, self._learner.modules_of(environment), gives_way=True)
            self._inventory.templates[environment] = template
            self._inventory.use(environment)
        await asyncio.shield(template.ready)
        self.tend(environment)
        return template.unfit is None

    async def taught(self, environment: Environment) -> None:
        """Wait until no template of an environment learns."""
        await self._learner.wait(environment)

    def begin_recent(self) -> None:
        """Begin templates of the environments that were used lately, as an earlier endpoint has noted."""
        for environment in self._learner.recent()[:_MOST_RECENT]:
            self._background.start(self.begin(environment))

    def tend(self, environment: Environment) -> None:
        """Make spares again, in the background. Called when a model has answered, so that nothing is in its way."""
        if environment not in self._tending:
            self._tending.add(environment)
            self._background.start(self._tend(environment))

    def teach(self, environment: Environment, modules: Sequence[str]) -> None:
        """Have the template import modules that a predictor had to import; its spares are replaced."""
        template = self._inventory.serving(environment)
        if template is None:
            return  # the next predictor that lacks them reports them again
        new = self._learner.new_for(environment, template, modules)
        if new and self._has_room(self._inventory.bytes_of_template(environment)):
            self._learner.begin(environment, new)

    async def make(self, environment: Environment) -> PredictorProcess:
        """A process of its own beside the spares, prepared as they are. Raises TrimsError."""
        process = await self._new(environment)
        pages = [] if process.pages is None else process.pages.page_ranges()
        spawned = process.how == "spawned"
        modules = self._learner.modules_of(environment) if spawned else environment.modules()
        prepare = {"op": "prepare", "modules": modules, "import": spawned, "threads": self._threads, "pages": pages}
        try:
            await process.ask(prepare, deadline_s=_IMPORT_S if spawned else _PREPARE_S)
        except BaseException:
            process.kill("it could not be prepared")
            raise
        return process

    def shelve(self, process: PredictorProcess) -> None:
        """Count a process as a hot spare, which goes first when memory is needed, until `unshelve` or its end."""
        environment = self._living[process]
        self._inventory.hot.setdefault(environment, []).append(process)
        process.going.add_done_callback(lambda _: self.unshelve(process))
        self._reclaimer.wake()

    def unshelve(self, process: PredictorProcess) -> bool:
        """Count it no more. False if it was not counted, because it is being ended."""
        return self._inventory.drop_hot(process)

    def has_room_for_hot(self, environment: Environment) -> bool:
        """Return whether one more hot spare would not be ended again at once for its memory."""
        return self._has_room(self._inventory.bytes_of_spare(environment, hot=True))

    def identities(self) -> object:
        """Return the identities of the files hidden from processes that start now; new ones once one was replaced."""
        return self._launcher.identities()

    async def _forked(self, environment: Environment) -> PredictorProcess:
        """A fork of the template, or of the next one if this one is lost meanwhile: a new process takes as long."""
        try:
            return await self._fork(environment)
        except LostPeerError as error:
            _log.info("a template for %s was lost, and another one is forked: %s", environment.framework, error)
            return await self._fork(environment)

    async def _fork(self, environment: Environment) -> PredictorProcess:
        self._check_open()
        template = self._template(environment)
        self._inventory.leaving.discard(environment)
        try:
            with as_trims_errors("no predictor can be forked"):
                process = await template.fork()
        except (PredictorError, LostPeerError, BadMessageError):
            self._learner.doubt(environment, template)
            self._discard(environment, template)
            raise
        self._learner.prove(environment)
        return self._watch(process, environment)

    def _check_open(self) -> None:
        if self._closing:
            raise DrainingError("the endpoint is ending and starts no predictors")

    def _use(self, environment: Environment) -> None:
        self._inventory.use(environment)
        self._learner.use(environment)
        self._reclaimer.wake()

    def _watch(self, process: PredictorProcess, environment: Environment) -> PredictorProcess:
        self._living[process] = environment
        process.ended.add_done_callback(lambda _: self._forget(process))
        self._reclaimer.wake()
        if self._closing:
            process.kill("the endpoint ended")
        return process

    def _forget(self, process: PredictorProcess) -> None:
        self._let_go(self._living.pop(process))
        self._reclaimer.wake()

    def _let_go(self, environment: Environment) -> None:
        """Let an environment be removed if nothing runs in it any more."""
        self._inventory.forget_ended()
        used = [*self._living.values(), *(each for each, _ in self._inventory.made)]
        if not any(each.python == environment.python for each in used):
            self._launcher.let_go(environment.python)

    def _template(self, environment: Environment) -> Template:
        template = self._inventory.serving(environment)
        if template is None:
            template = self._make_template(environment, self._learner.modules_of(environment))
            self._inventory.templates[environment] = template
        return template

    def _make_template(self, environment: Environment, modules: Sequence[str], *, gives_way: bool = False) -> Template:
        with as_trims_errors(f"no template for {environment.framework} can be started"):
            template = Template(self._launcher, environment, modules, gives_way=gives_way)
        self._inventory.add(environment, template)
        template.ready.add_done_callback(lambda _: self._reclaimer.wake())
        template.gone.add_done_callback(lambda _: self._let_go(environment))
        self._begin_reclaimer()
        return template

    def _discard(self, environment: Environment, template: Template) -> None:
        """A template could not be forked: the next request has another one."""
        if self._inventory.templates.get(environment) is template:
            del self._inventory.templates[environment]
            template.close("it could not be forked")

    async def _serve(self, environment: Environment, template: Template) -> None:
        """Have a template serve from now on, and have spares of it in the place of those of the last."""
        before, self._inventory.templates[environment] = self._inventory.templates.get(environment), template
        self._inventory.leaving.discard(environment)
        if before is not None:
            before.retire()
        for spare in self._inventory.spares.pop(environment, []):  # they lack what it has imported
            await spare.end()
        self.tend(environment)

    async def _tend(self, environment: Environment) -> None:
        try:
            await self.calm()
            while self._wants_spare(environment):
                spare = await self.make(environment)
                self._inventory.spares.setdefault(environment, []).append(spare)
                spare.going.add_done_callback(partial(self._inventory.drop_spare, environment, spare))
                self._reclaimer.wake()
        except Exception as error:  # noqa: BLE001 - without a spare, the next predictor is forked or spawned
            _log.warning("no spare predictor for %s: %s", environment.framework, error)
        finally:
            self._tending.discard(environment)

    def _wants_spare(self, environment: Environment) -> bool:
        """Return whether to make one more: not for an unused environment, and not where it would be ended again."""
        if len(self._inventory.spares.get(environment, ())) >= self._most_spares:
            return False
        used = environment in self._inventory.kept or environment in self._living.values()
        wanted = used or self._inventory.serving(environment) is not None
        return wanted and self._has_room(self._inventory.bytes_of_spare(environment))

    def _has_room(self, nbytes: int) -> bool:
        most_bytes = self._reclaimer.limits.most_bytes
        return most_bytes is None or self._reclaimer.total_bytes + nbytes <= most_bytes

    # -- memory ----------------------------------------------------------------------------------------------------

    def _begin_reclaimer(self) -> None:
        if not self._keeping:
            self._keeping = True
            self._background.start(self._reclaimer.run())

    async def _carry_out(self, step: Step) -> None:
        environment: Environment = step.environment  # type: ignore[assignment]
        _log.info("%s for %s: %s", step.way.value, environment.framework, step.why)
        if step.way is Way.LEAVE:
            self._inventory.leaving.add(environment)
        elif step.way is Way.END_HOT_SPARE:
            await self._inventory.hot[environment].pop(0).end()
        elif step.way is Way.END_SPARE:
            await self._inventory.spares[environment].pop(0).end()
        else:
            await self._end(environment)

    async def _end(self, environment: Environment) -> None:
        template, spares = self._inventory.clear(environment)
        if template is not None:
            template.retire()  # it goes with its last spare
        for spare in spares:
            await spare.end()

    async def calm(self) -> None:
        """Wait until no request is answered, but not for ever."""
        until = time.monotonic() + _LONGEST_CALM_S
        while self._busy() and time.monotonic() < until:
            await asyncio.sleep(_CALM_S)

    @staticmethod
    def _explained(error: BaseException) -> bool:
        if isinstance(error, TrimsError):  # such as an environment that was removed since, or no descriptor left
            _log.warning("a template cannot be started: %s", error)
        return isinstance(error, TrimsError)

    async def close(self) -> None:
        """End all predictors and templates; none is left afterwards."""
        self._closing = True
        self._background.cancel()
        await self._background.wait()
        await self._end_all()  # before their templates, which alone learn how they end
        for _, template in self._inventory.running():
            template.close()
        await self._end_all()  # what was forked meanwhile
        for _, template in self._inventory.made:
            template.end_all()
        if self._inventory.made:
            await asyncio.wait([template.gone for _, template in self._inventory.made], timeout=_GONE_S)

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
