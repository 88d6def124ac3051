"""The nursery: a template for each framework and environment, and spare predictors forked from it.

A *spare* is forked before it is needed: it is connected to the daemon, and its threads run. A request for a model that
has no predictor takes the spare, so it waits neither for a fork nor for a framework's first steps.

Templates learn: what a predictor had to import for its model is imported by the next template, which takes the place of
the last once it may be forked (see `gate`). Until then the last one serves, so modules that are slow, hang or spoil a
template cost no request its time; they are not asked for again.

Where a template may not be forked, the predictor is spawned as a program of its own, and the template is replaced.
Where none can be (`unforkable`), the spares are such programs, too: they have imported what a template would have.

Templates go when they are not used, or when their memory is needed (`turnover`, `upkeep`); the next request that needs
one starts it again. An environment in which nothing runs any more may be removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from typing import TYPE_CHECKING

from trims.core.errors import BadMessageError, DrainingError, LostPeerError, PredictorError, TrimsError
from trims_predictors.background import Background
from trims_predictors.preloads import Preloads
from trims_predictors.processes import PredictorProcess, spawn
from trims_predictors.shortage import told_in_words
from trims_predictors.templates import Template
from trims_predictors.turnover import End, EndHotSpare, EndSpare, Leave, Limits, Standing
from trims_predictors.unforkable import Unforkable
from trims_predictors.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims_predictors.footprints import Footprint
    from trims_predictors.launching import Environment, Launcher
    from trims_predictors.turnover import Step

_log = logging.getLogger(__name__)
_PREPARE_S = 30.0
#: The same for a program of its own, which imports its framework first.
_IMPORT_S = 120.0
#: Between SIGKILL and the end of a process, which may take a while if it has much memory.
_BURIAL_S = 10.0
#: The same for templates, and the guards round them.
_GONE_S = 10.0
#: Between two looks whether requests are answered, and until they are not waited for any more.
_CALM_S, _LONGEST_CALM_S = 0.05, 2.0
#: Rounds of learning of one template.
_MOST_LESSONS = 32
_TOLD = {
    EndHotSpare: "a hot spare ends",
    EndSpare: "a spare ends",
    End: "a template ends",
    Leave: "a template ends with its last predictor",
}


class Nursery:
    """Has predictors ready for each environment.

    Args:
        launcher: Starts templates.
        spares: How many predictors each template has ready.
        threads: What a spare warms up with.
        busy: Whether requests are being answered. Spares and lessons, which compute for a while, wait until none is.
        limits: What templates may cost.
    """

    def __init__(
        self, launcher: Launcher, *, spares: int, threads: int, busy: Callable[[], bool], limits: Limits | None = None
    ) -> None:
        self._launcher = launcher
        self._busy = busy
        self._most_spares = spares
        self._threads = threads
        self._templates: dict[Environment, Template] = {}
        self._spares: dict[Environment, list[PredictorProcess]] = {}
        #: Processes that have loaded a model ahead of need (see `hot_spares`).
        self._hot: dict[Environment, list[PredictorProcess]] = {}
        self._learned: dict[Environment, list[str]] = {}
        #: Modules that cannot be imported in a template, and who asks for them.
        self.preloads = Preloads()
        self._banned = self.preloads.banned
        #: Modules of the last lesson in which a template was lost.
        self._unfinished: dict[Environment, set[str]] = {}
        #: Environments for which a template learns.
        self._teaching: set[Environment] = set()
        self._lessons: dict[Environment, int] = {}
        #: All that have not been seen to end, and by framework how many were started.
        self._made: list[tuple[Environment, Template]] = []
        self._started: dict[str, int] = {}
        self._background = Background("the nursery", self._explained)
        self._tending: set[Environment] = set()
        self._unforkable = Unforkable()
        #: All processes that were taken or are spares, until each has ended.
        self._living: dict[PredictorProcess, Environment] = {}
        #: When a predictor was asked for, or ended, last.
        self._used_s: dict[Environment, float] = {}
        #: Environments whose templates stay without use, and those whose templates go with their last predictors.
        self._kept: set[Environment] = set()
        self._leaving: set[Environment] = set()
        #: The most bytes that a template had, which are fewer while it shares some; and those of a spare alone.
        self._sizes: dict[Environment, int] = {}
        self._spare_sizes: dict[Environment, int] = {}
        self._hot_sizes: dict[Environment, int] = {}
        self._upkeep = Upkeep(self, limits or Limits())
        self._keeping = False
        self._closing = False

    async def take(self, environment: Environment) -> PredictorProcess:
        """A predictor's process that has loaded nothing yet.

        Raises PredictorError if none can be started, CapacityError if descriptors or processes lack for it,
        DrainingError if the nursery is closing.
        """
        self._use(environment)
        process = await self._take(environment)
        process.ended.add_done_callback(lambda _: self._use(environment))
        return process

    async def _take(self, environment: Environment) -> PredictorProcess:
        self._leave_what_sees_too_much(environment)
        spares = self._spares.get(environment, [])
        while spares:
            spare = spares.pop()
            if not spare.dying:
                spare.how = "spare"
                return spare
        return await self._new(environment)

    async def _new(self, environment: Environment) -> PredictorProcess:
        """A fork of a template, or a program of its own where none can be forked."""
        if environment not in self._unforkable:
            try:
                return await self._forked(environment)
            except (PredictorError, LostPeerError, BadMessageError) as error:
                self._check_open()
                _log.warning("a predictor for %s is spawned, not forked: %s", environment.framework, error)
        return self._watch(spawn(self._launcher, environment), environment)

    def _leave_what_sees_too_much(self, environment: Environment) -> None:
        """Use a template and its spares no more if something that is hidden from them was replaced meanwhile."""
        template = self._templates.get(environment)
        if template is None or template.lost is not None or template.identities == self._launcher.identities():
            return
        why = "a file or folder that is hidden from it was replaced"
        _log.info("a template of %s is used no more: %s", environment.framework, why)
        del self._templates[environment]
        template.retire()
        for spare in self._spares.pop(environment, []):
            spare.kill(why)

    def spares(self) -> dict[str, int]:
        """How many spares each framework has."""
        found: dict[str, int] = {}
        for environment, spares in self._spares.items():  # of several versions, each in an environment of its own
            found[environment.framework] = found.get(environment.framework, 0) + len(spares)
        return found

    def templates(self) -> dict[str, dict[str, int]]:
        """Of each framework: templates that were started, those that have ended, and bytes of the others with spares.

        The bytes are those of the last count, a second ago or longer if nothing has changed since.
        """
        living = [environment.framework for environment, _ in self._running()]
        found = {
            framework: {"started": started, "ended": started - living.count(framework), "bytes": 0}
            for framework, started in self._started.items()
        }
        for environment, pid in self._processes():
            counted = self._upkeep.counted.get(pid)
            if environment.framework in found and counted is not None:
                found[environment.framework]["bytes"] += counted.share_bytes
        return found

    def learning(self) -> list[str]:
        """Frameworks for which a template learns just now."""
        return sorted({environment.framework for environment in self._teaching})

    def keep(self, environment: Environment) -> None:
        """Have a template and its spares ready from now on, also without use."""
        self._kept.add(environment)
        self.tend(environment)

    def tend(self, environment: Environment) -> None:
        """Make spares again, in the background. Called when a model has answered, so that nothing is in its way."""
        if environment not in self._tending:
            self._tending.add(environment)
            self._background.start(self._tend(environment))

    def teach(self, environment: Environment, modules: Sequence[str]) -> None:
        """Tell what a predictor had to import; the template imports it, too, and its spares are replaced."""
        template = self._templates.get(environment)
        if template is None or template.lost is not None or environment in self._teaching:
            return  # the next predictor that lacks them tells it again
        known = template.modules | self._banned.get(environment, {}).keys()
        new = [name for name in modules if name not in known and "__main__" not in name]
        lessons = self._lessons.get(environment, 0)
        if new and lessons < _MOST_LESSONS and self._has_room(self._sizes.get(environment, 0)):
            self._lessons[environment] = lessons + 1
            self._teaching.add(environment)
            self._background.start(self._teach(environment, new))

    async def make(self, environment: Environment) -> PredictorProcess:
        """A process of its own beside the spares, prepared as they are. Raises TrimsError."""
        process = await self._new(environment)
        pages = [] if process.pages is None else process.pages.told()
        modules, spawned = environment.modules(), process.how == "spawned"
        if spawned:
            modules += self._learned.get(environment, [])
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
        self._hot.setdefault(environment, []).append(process)
        process.going.add_done_callback(lambda _: self.unshelve(process))
        self._upkeep.stir()

    def unshelve(self, process: PredictorProcess) -> bool:
        """Count it no more. False if it was not counted, because it is being ended."""
        for shelf in self._hot.values():
            if process in shelf:
                shelf.remove(process)
                return True
        return False

    def has_room_for_hot(self, environment: Environment) -> bool:
        """Whether one more hot spare would not be ended again at once for its memory."""
        template = self._templates.get(environment)
        missing = 0 if template is not None and template.lost is None else self._sizes.get(environment, 0)
        return self._has_room(missing + self._hot_sizes.get(environment, self._spare_sizes.get(environment, 0)))

    def identities(self) -> object:
        """What is hidden from processes that start now; another value once something of it was replaced."""
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
        self._leaving.discard(environment)
        try:
            with told_in_words("no predictor can be forked"):
                process = await template.fork()
        except (PredictorError, LostPeerError, BadMessageError):
            if template.spoilt is not None:
                self._unforkable.note(environment)
            self._discard(environment, template)
            raise
        return self._watch(process, environment)

    def _check_open(self) -> None:
        if self._closing:
            raise DrainingError("the endpoint is ending and starts no predictors")

    def _use(self, environment: Environment) -> None:
        self._used_s[environment] = time.monotonic()
        self._upkeep.stir()

    def _watch(self, process: PredictorProcess, environment: Environment) -> PredictorProcess:
        self._living[process] = environment
        process.ended.add_done_callback(lambda _: self._forget(process))
        self._upkeep.stir()
        if self._closing:
            process.kill("the endpoint ended")
        return process

    def _forget(self, process: PredictorProcess) -> None:
        self._let_go(self._living.pop(process))
        self._upkeep.stir()

    def _let_go(self, environment: Environment) -> None:
        """Let an environment be removed if nothing runs in it any more."""
        self._made = [each for each in self._made if not each[1].gone.done()]
        used = [*self._living.values(), *(each for each, _ in self._made)]
        if not any(each.python == environment.python for each in used):
            self._launcher.let_go(environment.python)

    def _template(self, environment: Environment) -> Template:
        template = self._templates.get(environment)
        if template is None or template.lost is not None:
            modules = [*environment.modules(), *self._learned.get(environment, [])]
            template = self._templates[environment] = self._make(environment, modules)
        return template

    def _make(self, environment: Environment, modules: Sequence[str], *, gives_way: bool = False) -> Template:
        with told_in_words(f"no template for {environment.framework} can be started"):
            template = Template(self._launcher, environment, modules, gives_way=gives_way)
        framework = environment.framework
        self._started[framework] = self._started.get(framework, 0) + 1
        self._made.append((environment, template))
        self._used_s.setdefault(environment, time.monotonic())
        template.ready.add_done_callback(lambda _: self._upkeep.stir())
        template.gone.add_done_callback(lambda _: self._let_go(environment))
        self._begin_upkeep()
        return template

    def _discard(self, environment: Environment, template: Template) -> None:
        """A template could not be forked: the next request has another one."""
        if self._templates.get(environment) is template:
            del self._templates[environment]
            template.close("it could not be forked")

    async def _teach(self, environment: Environment, modules: list[str]) -> None:
        """Make a template that has imported these, too, and put it in the place of the last one."""
        try:
            await self.calm()
            learned = [*self._learned.get(environment, []), *modules]
            template = self._make(environment, [*environment.modules(), *learned], gives_way=True)
            try:
                await asyncio.shield(template.ready)
            except LostPeerError as error:
                template.spoilt = str(error)
                if self._may_try_again(environment, modules, template):
                    return
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
            self.preloads.ban(environment, dict.fromkeys(modules, template.spoilt))
            template.close("it was spoilt")
            return
        self._learned[environment] = [each for each in learned if each not in template.failed]
        self.preloads.ban(environment, template.failed)
        before, self._templates[environment] = self._templates.get(environment), template
        self._leaving.discard(environment)
        if before is not None:
            before.retire()
        for spare in self._spares.pop(environment, []):  # they lack it
            await spare.end()
        self.tend(environment)

    def _may_try_again(self, environment: Environment, modules: list[str], template: Template) -> bool:
        """Whether a lesson in which the template was lost may not be to blame for it: the first time it is not.

        Memory may have been short, or an operator may have killed the process. The next predictor tells it again.
        """
        if self._unfinished.get(environment) == set(modules):
            return False
        self._unfinished[environment] = set(modules)
        _log.warning(
            "a template for %s was lost while it learned, which is tried once more: %s (%s)",
            environment.framework, ", ".join(modules[:20]), template.spoilt,
        )  # fmt: skip
        template.close("it was lost")
        return True

    async def _tend(self, environment: Environment) -> None:
        try:
            await self.calm()
            while self._wants_spare(environment):
                spare = await self.make(environment)
                self._spares.setdefault(environment, []).append(spare)
                spare.going.add_done_callback(functools.partial(self._drop, environment, spare))
                self._upkeep.stir()
        except Exception as error:  # noqa: BLE001 - without a spare, the next predictor is forked or spawned
            _log.warning("no spare predictor for %s: %s", environment.framework, error)
        finally:
            self._tending.discard(environment)

    def _drop(self, environment: Environment, spare: PredictorProcess, _: object) -> None:
        """A process has ended that may be a spare still."""
        with contextlib.suppress(ValueError):
            self._spares.get(environment, []).remove(spare)

    def _wants_spare(self, environment: Environment) -> bool:
        """Whether to make one more: not for an environment without use, and not where it would be ended again."""
        if len(self._spares.get(environment, ())) >= self._most_spares:
            return False
        template = self._templates.get(environment)
        if template is not None and template.lost is None:
            return self._has_room(self._spare_sizes.get(environment, 0))
        used = environment in self._kept or environment in self._living.values()
        return used and self._has_room(self._sizes.get(environment, 0) + self._spare_sizes.get(environment, 0))

    def _has_room(self, nbytes: int) -> bool:
        most_bytes = self._upkeep.limits.most_bytes
        return most_bytes is None or self._upkeep.total_bytes + nbytes <= most_bytes

    # -- upkeep ----------------------------------------------------------------------------------------------------

    def _begin_upkeep(self) -> None:
        if not self._keeping:
            self._keeping = True
            self._background.start(self._upkeep.run())

    def _running(self) -> list[tuple[Environment, Template]]:
        return [each for each in self._made if each[1].lost is None]

    def _processes(self) -> list[tuple[Environment, int]]:
        """Of all templates and spares."""
        templates = [(environment, pid) for environment, template in self._running() for pid in template.pids]
        waiting = [*self._spares.items(), *self._hot.items()]
        return templates + [(each, spare.pid) for each, spares in waiting for spare in spares]

    def pids(self) -> list[int]:
        """See `Household`."""
        return [pid for _, pid in self._processes()]

    def standings(self, counted: Mapping[int, Footprint]) -> tuple[list[Standing], int]:
        """See `Household`."""
        served = {id(template) for template in self._templates.values()}
        others = [pid for _, template in self._running() if id(template) not in served for pid in template.pids]
        waiting = [*self._spares.items(), *self._hot.items()]
        environments = {*self._templates, *(each for each, spares in waiting if spares)}
        found = [self._standing(each, counted) for each in environments]
        return found, sum(counted[pid].share_bytes for pid in others if pid in counted)

    def _standing(self, environment: Environment, counted: Mapping[int, Footprint]) -> Standing:
        template, spares = self._templates.get(environment), self._spares.get(environment, [])
        hot = self._hot.get(environment, [])
        pids, hot_pids = {spare.pid for spare in spares}, {each.pid for each in hot}
        alive = template is not None and template.lost is None
        nbytes = sum(counted[pid].share_bytes for pid in template.pids if pid in counted) if template and alive else 0
        self._sizes[environment] = max(self._sizes.get(environment, 0), nbytes)
        if spares and spares[-1].pid in counted:
            self._spare_sizes[environment] = counted[spares[-1].pid].own_bytes
        if hot and hot[-1].pid in counted:
            self._hot_sizes[environment] = counted[hot[-1].pid].own_bytes
        return Standing(
            environment,
            nbytes=nbytes,
            spare_bytes=tuple(counted[pid].share_bytes if pid in counted else 0 for pid in pids),
            hot_bytes=tuple(counted[pid].share_bytes if pid in counted else 0 for pid in hot_pids),
            used_s=self._used_s.get(environment, 0.0),
            predictors=len(template.predictors - pids - hot_pids) if template and alive else 0,
            waited_for=bool(template and alive and template.waited_for),
            kept=environment in self._kept,
            leaving=environment in self._leaving,
        )

    async def carry_out(self, step: Step) -> None:
        """See `Household`."""
        environment: Environment = step.environment  # type: ignore[assignment]
        _log.info("%s for %s: %s", _TOLD[type(step)], environment.framework, step.why)
        if isinstance(step, Leave):
            self._leaving.add(environment)
        elif isinstance(step, EndHotSpare):
            await self._hot[environment].pop(0).end()
        elif isinstance(step, EndSpare):
            await self._spares[environment].pop(0).end()
        else:
            await self._end(environment)

    async def _end(self, environment: Environment) -> None:
        self._leaving.discard(environment)
        template, spares = self._templates.pop(environment, None), self._spares.pop(environment, [])
        if template is not None:
            template.retire()  # it goes with its last spare
        for spare in [*spares, *self._hot.pop(environment, [])]:
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
        for _, template in self._running():
            template.close()
        await self._end_all()  # what was forked meanwhile
        for _, template in self._made:
            template.end_all()
        if self._made:
            await asyncio.wait([template.gone for _, template in self._made], timeout=_GONE_S)

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
