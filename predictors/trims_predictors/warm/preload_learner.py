"""Preloads that are learned: the next template imports what a predictor had to import for its model.

A template that learns is a new one. It takes the place of the last once it may be forked (see `fork_safety`), so
modules that are slow, hang or make a template unfit cost no request its time. They are not asked for again. What was
learned is kept in a file, and the first template of the next endpoint begins with it. A file that is damaged, of
another version, or full of what no endpoint wrote counts as empty: losing it costs the first cold start of each
framework some time, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import time
from typing import TYPE_CHECKING, Any

from trims.core.errors import LostPeerError
from trims_predictors.children.launcher import Environment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from trims_predictors.children.template_process import Template
    from trims_predictors.tasks import Background

_log = logging.getLogger(__name__)
#: Seconds within which a use counts as recent when the next endpoint starts; and between two notes of uses.
_RECENT_S, _USE_S = 7 * 86_400.0, 3600.0
#: Rounds of learning of one environment.
_MOST_LESSONS = 32
#: Seconds until a template is tried again where one could not be forked: the cause may have been of the moment, or a
#: package was replaced. Each new template would find it out again, for seconds of imports.
_AGAIN_S = 600.0
_VERSION = 1
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_MOST_BYTES = 4 << 20
#: Modules of one environment, at most: more than any model imports.
_MOST_MODULES = 4096


class Preloads:
    """Warns of each module that a manifest asks for in vain, once for each model.

    Attributes:
        banned: Modules that templates of an environment do without, and why.
    """

    def __init__(self) -> None:
        self.banned: dict[Environment, dict[str, str]] = {}
        #: Models that ask for a module of an environment, and those of them that were reported.
        self._wanted: dict[tuple[Environment, str], set[str]] = {}
        self._logged: dict[tuple[Environment, str], set[str]] = {}

    def want(self, environment: Environment, model: str, modules: Iterable[str]) -> None:
        """A model's manifest asks for modules."""
        for module in modules:
            self._wanted.setdefault((environment, module), set()).add(model)
            self._log_need(environment, module)

    def ban(self, environment: Environment, modules: Mapping[str, str]) -> None:
        """Do without modules from now on, and keep why."""
        self.banned.setdefault(environment, {}).update(modules)
        for module in modules:
            self._log_need(environment, module)

    def _log_need(self, environment: Environment, module: str) -> None:
        why = self.banned.get(environment, {}).get(module)
        if why is None:
            return
        logged = self._logged.setdefault((environment, module), set())
        for model in sorted(self._wanted.get((environment, module), set()) - logged):
            logged.add(model)
            _log.warning(
                "`preload` of %r names %s, which the template for %s cannot import: %s. Each of its predictors imports "
                "it alone, if its code does. Install the module in the environment and start the endpoint again; one "
                "beside the manifest cannot be preloaded, because manifests share a template",
                model, module, environment.framework, why,
            )  # fmt: skip


class PreloadLearner:
    """Learner of the modules that templates import, with the attempts that run.

    Args:
        make_template: Starts a template that serves no request yet. Raises TrimsError if it cannot be started.
        serve: Has a template serve from now on, and has spares of it in the place of those of the last.
        calm: Waits until no request is being answered, but not for ever.
        background: Runs the attempts.
        file: Keeps what was learned for the next endpoint; None keeps it nowhere.

    Attributes:
        learned: What a template imports beside its framework, by environment.
        preloads: Modules that cannot be imported in a template, and the models that ask for them.
    """

    def __init__(
        self,
        make_template: Callable[[Environment, Sequence[str]], Template],
        serve: Callable[[Environment, Template], Awaitable[None]],
        calm: Callable[[], Awaitable[None]],
        background: Background,
        file: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_template = make_template
        self._serve = serve
        self._calm = calm
        self._background = background
        self._file = file
        self._clock = clock
        #: Environments whose templates cannot be forked, and the moment from which one is tried again.
        self._unforkable: dict[Environment, float] = {}
        self.learned: dict[Environment, list[str]] = {} if file is None else read_learned(file)
        self._keeping = asyncio.Lock()
        #: Environments whose modules an earlier endpoint learned, until a template with them was forked.
        self._unproven = {environment for environment, modules in self.learned.items() if modules}
        #: When each environment was used last, in seconds since 1970, by this endpoint or an earlier one.
        self._used: dict[Environment, float] = {} if file is None else read_used(file)
        self.preloads = Preloads()
        #: Modules of the last attempt in which a template was lost.
        self._unfinished: dict[Environment, set[str]] = {}
        self._running: dict[Environment, asyncio.Event] = {}
        self._given: dict[Environment, int] = {}

    def modules_of(self, environment: Environment) -> list[str]:
        """Return all modules that a template of the environment imports."""
        return [*environment.modules(), *self.learned.get(environment, [])]

    def prove(self, environment: Environment) -> None:
        """Note that a template with all that was learned can be forked."""
        self._unproven.discard(environment)

    def may_fork(self, environment: Environment) -> bool:
        """Return whether a template may be tried: not for a while after one could not be forked."""
        return self._clock() >= self._unforkable.get(environment, 0.0)

    def doubt(self, environment: Environment, template: Template) -> None:
        """Note that a template could not be forked.

        What an earlier endpoint learned is forgotten, if no template with it could be forked yet: a package may have
        been replaced since, and starts a thread now when it is imported. Otherwise a template that is unfit from its
        first imports on is not tried again for a while.
        """
        if environment not in self._unproven:
            if template.unfit is not None:
                self._unforkable[environment] = self._clock() + _AGAIN_S
            return
        self._unproven.discard(environment)
        modules = self.learned.pop(environment, [])
        _log.warning(
            "a template for %s cannot be forked with what was learned before, which is forgotten: %s",
            environment.framework, ", ".join(modules[:20]),
        )  # fmt: skip
        self._background.start(self._keep())

    async def _keep(self) -> None:
        """Write the file, once at a time: the last to write has all that was learned."""
        if self._file is not None:
            async with self._keeping:
                known = {environment: list(modules) for environment, modules in self.learned.items()}
                await asyncio.to_thread(write_learned, self._file, known, dict(self._used))

    def use(self, environment: Environment) -> None:
        """Note that an environment is used now, for the next endpoint."""
        now_s = time.time()
        if now_s - self._used.get(environment, 0.0) > _USE_S:
            self._used[environment] = now_s
            self._background.start(self._keep())

    def recent(self) -> list[Environment]:
        """Return the environments that were used lately, the last one first."""
        since_s = time.time() - _RECENT_S
        used = sorted(self._used.items(), key=lambda each: each[1], reverse=True)
        return [environment for environment, used_s in used if used_s >= since_s]

    def running(self) -> set[Environment]:
        """Environments for which a template learns just now."""
        return set(self._running)

    async def wait(self, environment: Environment) -> None:
        """Wait until no template of the environment learns."""
        running = self._running.get(environment)
        if running is not None:
            await running.wait()

    def new_for(self, environment: Environment, template: Template, modules: Sequence[str]) -> list[str]:
        """Return the modules that an attempt could add to a template; none while one runs, or after too many."""
        if environment in self._running or self._given.get(environment, 0) >= _MOST_LESSONS:
            return []  # the next predictor that lacks them reports them again
        known = template.modules | self.preloads.banned.get(environment, {}).keys()
        return [name for name in modules if name not in known and "__main__" not in name]

    def begin(self, environment: Environment, modules: list[str]) -> None:
        """Start an attempt: a new template imports these modules, too."""
        self._given[environment] = self._given.get(environment, 0) + 1
        self._running[environment] = asyncio.Event()
        self._background.start(self._run(environment, modules))

    async def _run(self, environment: Environment, modules: list[str]) -> None:
        try:
            template = await self._taught(environment, modules)
        finally:
            self._running.pop(environment).set()
        if template is None:
            return
        if template.unfit is not None:
            _log.warning(
                "a template for %s cannot learn this; its predictors will import it themselves: %s (%s)",
                environment.framework, ", ".join(modules[:20]), template.unfit,
            )  # fmt: skip
            self.preloads.ban(environment, dict.fromkeys(modules, template.unfit))
            template.close("it was unfit")
            return
        learned = [*self.learned.get(environment, []), *modules]
        self.learned[environment] = [each for each in learned if each not in template.failed]
        self.preloads.ban(environment, template.failed)
        self._background.start(self._keep())
        await self._serve(environment, template)

    async def _taught(self, environment: Environment, modules: list[str]) -> Template | None:
        """A template that has imported the modules, too, or is unfit; None if the attempt is to be made once more."""
        await self._calm()
        template = self._make_template(environment, [*self.modules_of(environment), *modules])
        try:
            await asyncio.shield(template.ready)
        except LostPeerError as error:
            template.unfit = str(error)
            if self._may_try_again(environment, modules, template):
                return None
        except asyncio.CancelledError:
            template.close("the endpoint ends")
            raise
        return template

    def _may_try_again(self, environment: Environment, modules: list[str], template: Template) -> bool:
        """Return whether an attempt in which the template was lost may be made again: the first time it may.

        Memory may have been short, or an operator may have killed the process. The next predictor reports the modules
        again.
        """
        if self._unfinished.get(environment) == set(modules):
            return False
        self._unfinished[environment] = set(modules)
        _log.warning(
            "a template for %s was lost while it learned, which is tried once more: %s (%s)",
            environment.framework, ", ".join(modules[:20]), template.unfit,
        )  # fmt: skip
        template.close("it was lost")
        return True


def read_learned(path: Path) -> dict[Environment, list[str]]:
    """Return the modules of each environment whose interpreter is still there; nothing if the file cannot be used."""
    return {environment: modules for environment, modules, _ in _rows(path)}


def read_used(path: Path) -> dict[Environment, float]:
    """Return when each environment was used last, in seconds since 1970; nothing if the file cannot be used."""
    return {environment: used_s for environment, _, used_s in _rows(path)}


def _rows(path: Path) -> list[tuple[Environment, list[str], float]]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
        if found["version"] != _VERSION:
            return []
        rows = [_row(each) for each in found["environments"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        _log.warning("%s is not used: what templates have learned is learned again (%s)", path, error)
        return []
    return [row for row in rows if not row[0].python or os.path.isfile(row[0].python)]


def _row(raw: Any) -> tuple[Environment, list[str], float]:
    texts = [raw["framework"], raw["python"], raw["tenant"], *raw["modules"]]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{raw!r:.80} is no environment")
    modules = [name for name in raw["modules"] if _MODULE.match(name)]
    used_s = float(raw.get("used_s", 0.0))
    return Environment(raw["framework"], raw["python"], raw["tenant"]), modules[:_MOST_MODULES], used_s


def write_learned(
    path: Path, learned: Mapping[Environment, Sequence[str]], used: Mapping[Environment, float] | None = None
) -> None:
    """Replace the file in one step. Failures are logged: an endpoint without it answers as well.

    Args:
        learned: Modules of each environment.
        used: When each was used last, in seconds since 1970.
    """
    times = used or {}
    rows = [
        {
            "framework": each.framework, "python": each.python, "tenant": each.tenant,
            "modules": list(learned.get(each, ())), "used_s": times.get(each, 0.0),
        }
        for each in {**learned, **times}
    ]  # fmt: skip
    new = path.with_name(f"{path.name}.{os.getpid()}.new")  # of this process: commands may run beside each other
    try:
        new.write_text(json.dumps({"version": _VERSION, "environments": rows}), encoding="utf-8")
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        _log.warning("what templates have learned is not kept: %s: %s", path, error.strerror)
