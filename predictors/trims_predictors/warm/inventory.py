"""The inventory of a warm pool: templates, spares and hot spares of each environment, and what they cost.

It is what the warm pool has ready. Predictors that were taken are not of it, and what becomes of its parts is decided
elsewhere (`reclaim_policy`).
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from trims_predictors.warm.reclaim_policy import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims_predictors.children.launcher import Environment
    from trims_predictors.children.template_process import Template
    from trims_predictors.children.worker_process import PredictorProcess
    from trims_predictors.warm.memory_usage import Footprint


class Inventory:
    """Inventory of templates, spares and hot spares, by environment.

    Attributes:
        templates: Templates that serve. One that is lost stays here until another takes its place.
        made: All templates that have not been seen to end, with those that serve no more.
        spares: Prepared processes that have loaded nothing.
        hot: Processes that have loaded a model ahead of need (see `hot_spares`).
        kept: Environments whose templates stay without use.
        leaving: Environments whose templates go with their last predictors.
    """

    def __init__(self) -> None:
        self.templates: dict[Environment, Template] = {}
        self.made: list[tuple[Environment, Template]] = []
        self.spares: dict[Environment, list[PredictorProcess]] = {}
        self.hot: dict[Environment, list[PredictorProcess]] = {}
        self.kept: set[Environment] = set()
        self.leaving: set[Environment] = set()
        #: Templates that were started, by framework.
        self._started: dict[str, int] = {}
        #: Moment when a predictor was asked for, or ended, last.
        self._used_s: dict[Environment, float] = {}
        #: The most bytes that a template had, which are fewer while it shares some; and those of a spare alone.
        self._template_bytes: dict[Environment, int] = {}
        self._spare_bytes: dict[Environment, int] = {}
        self._hot_bytes: dict[Environment, int] = {}

    # -- what comes and goes ---------------------------------------------------------------------------------------

    def use(self, environment: Environment) -> None:
        """A predictor was asked for, or has ended."""
        self._used_s[environment] = time.monotonic()

    def add(self, environment: Environment, template: Template) -> None:
        """A template was started, which does not serve yet."""
        self._started[environment.framework] = self._started.get(environment.framework, 0) + 1
        self.made.append((environment, template))
        self._used_s.setdefault(environment, time.monotonic())

    def forget_ended(self) -> None:
        """Forget templates of which no process is left."""
        self.made = [each for each in self.made if not each[1].gone.done()]

    def take_spare(self, environment: Environment) -> PredictorProcess | None:
        """The newest spare that is alive; None if there is none."""
        spares = self.spares.get(environment, [])
        while spares:
            spare = spares.pop()
            if not spare.dying:
                return spare
        return None

    def drop_spare(self, environment: Environment, process: PredictorProcess, _: object = None) -> None:
        """Forget a process that ends and may be a spare still."""
        with contextlib.suppress(ValueError):
            self.spares.get(environment, []).remove(process)

    def drop_hot(self, process: PredictorProcess) -> bool:
        """Count a hot spare no more. False if it is not counted."""
        for env_store in self.hot.values():
            if process in env_store:
                env_store.remove(process)
                return True
        return False

    def clear(self, environment: Environment) -> tuple[Template | None, list[PredictorProcess]]:
        """Count nothing of an environment any more; returns its template and all spares, which the caller ends."""
        self.leaving.discard(environment)
        template = self.templates.pop(environment, None)
        return template, [*self.spares.pop(environment, []), *self.hot.pop(environment, [])]

    # -- what there is ---------------------------------------------------------------------------------------------

    def serving(self, environment: Environment) -> Template | None:
        """The template that predictors are forked from, if it is alive."""
        template = self.templates.get(environment)
        return template if template is not None and template.lost is None else None

    def running(self) -> list[tuple[Environment, Template]]:
        """Return all templates that are alive."""
        return [each for each in self.made if each[1].lost is None]

    def pids(self) -> list[int]:
        """Process ids of all templates and spares."""
        return [pid for _, pid in self.processes()]

    def processes(self) -> list[tuple[Environment, int]]:
        """Process ids of all templates and spares, with their environments."""
        templates = [(environment, pid) for environment, template in self.running() for pid in template.pids]
        return templates + [(each, spare.pid) for each, spares in self._waiting() for spare in spares]

    def spares_by_framework(self) -> dict[str, int]:
        """Return how many spares there are, without hot ones."""
        found: dict[str, int] = {}
        for environment, spares in self.spares.items():  # of several versions, each in an environment of its own
            found[environment.framework] = found.get(environment.framework, 0) + len(spares)
        return found

    def templates_by_framework(self, counted: Mapping[int, Footprint]) -> dict[str, dict[str, int]]:
        """Templates that were started, those that have ended, and bytes of the others with all spares."""
        living = [environment.framework for environment, _ in self.running()]
        found = {
            framework: {"started": started, "ended": started - living.count(framework), "bytes": 0}
            for framework, started in self._started.items()
        }
        for environment, pid in self.processes():
            if environment.framework in found and pid in counted:
                found[environment.framework]["bytes"] += counted[pid].share_bytes
        return found

    def _waiting(self) -> list[tuple[Environment, list[PredictorProcess]]]:
        return [*self.spares.items(), *self.hot.items()]

    # -- what it costs ---------------------------------------------------------------------------------------------

    def bytes_of_template(self, environment: Environment) -> int:
        """Return the bytes that one more template of the environment will take; 0 if none was counted yet."""
        return self._template_bytes.get(environment, 0)

    def bytes_of_spare(self, environment: Environment, *, hot: bool = False) -> int:
        """Return the bytes that one more spare will take, with its template if none is alive."""
        own = self._spare_bytes.get(environment, 0)
        missing = 0 if self.serving(environment) is not None else self.bytes_of_template(environment)
        return missing + (self._hot_bytes.get(environment, own) if hot else own)

    def usages(self, counted: Mapping[int, Footprint]) -> tuple[list[Usage], int]:
        """Return each environment's state now, and the bytes of templates that cannot be ended.

        What was counted is remembered as what each thing takes.
        """
        served = {id(template) for template in self.templates.values()}
        others = [pid for _, template in self.running() if id(template) not in served for pid in template.pids]
        environments = {*self.templates, *(each for each, spares in self._waiting() if spares)}
        found = [self._usage(each, counted) for each in environments]
        return found, sum(counted[pid].share_bytes for pid in others if pid in counted)

    def _usage(self, environment: Environment, counted: Mapping[int, Footprint]) -> Usage:
        template = self.serving(environment)
        spares, hot = self.spares.get(environment, []), self.hot.get(environment, [])
        nbytes = sum(counted[pid].share_bytes for pid in template.pids if pid in counted) if template else 0
        self._template_bytes[environment] = max(self.bytes_of_template(environment), nbytes)
        if spares and spares[-1].pid in counted:
            self._spare_bytes[environment] = counted[spares[-1].pid].own_bytes
        if hot and hot[-1].pid in counted:
            self._hot_bytes[environment] = counted[hot[-1].pid].own_bytes
        waiting = {each.pid for each in [*spares, *hot]}
        return Usage(
            environment,
            nbytes=nbytes,
            spare_bytes=_shares(spares, counted),
            hot_bytes=_shares(hot, counted),
            used_s=self._used_s.get(environment, 0.0),
            predictors=len(template.predictors - waiting) if template else 0,
            waited_for=bool(template and template.waited_for),
            kept=environment in self.kept,
            leaving=environment in self.leaving,
        )


def _shares(spares: list[PredictorProcess], counted: Mapping[int, Footprint]) -> tuple[int, ...]:
    """Return the bytes of each process of the inventory; 0 for one that was not measured yet."""
    return tuple(counted[each.pid].share_bytes if each.pid in counted else 0 for each in spares)
